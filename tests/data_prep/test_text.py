"""Markup -> prose, and which pages become documents."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.dump import Page
from data_prep.languages import SILENT, is_disambiguation
from data_prep.text import Document, convert
from data_prep.tidy import unquoted
from data_prep.wikitext import plain_text

SIGNS = ("[[", "]]", "{{", "}}", "{|", "|}", "<ref", "===", "'''", "\x01")
PIECES = (
    "[[ ]] {{ }} | ''' <ref> </ref> a {| |} ] <!-- <nowiki> </nowiki> <math> {{lang|fr| ( ) , -{ }- &lt; '' * __A__ "
    "File:"
)


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("'''Bold''' and ''slanted''", "Bold and slanted"),
        ("A [[river]], [[city|the city]]s and [[:Category:X]]", "A river, the citys and Category:X"),
        ("Go to [[Town#History]] now", "Go to Town now"),
        ("x[[File:A.jpg|thumb|A [[nested]] caption]]y[[Datei:B.png]][[Bild:C.svg|100px]]", "xy"),
        ("text[[Category:Rivers]][[de:Fluss]][[wikt:word|word]] [[Категория:Реки]]", "textword"),
        ("[[a|b\nc]] [[x {{lang|fr|y}}|{{cn}}]]", "b\nc x y"),
        ("one<ref>cited</ref> two<ref name=a /> three<!-- hidden -->.", "one two three."),
        ("one<ref>a <b>c</b> [[d]] {{cite|x}}</ref>.<ref>open two", "one.open two"),
        ('one<ref>a <ref name="b"/> p. 3</ref> two<ref>open <ref name=c /> three <ref>d</ref>.', "one twoopen three."),
        ("a {{infobox|x={{y}}}}b", "a b"),
        ("a {{infobox|\nx = {{y|z}}\n|}}\nb", "a\nb"),
        ("5 {{convert|5|km|mi}} long, {{convert|2|to|4|ft|m}}, {{cvt|1|-|4|m}}", "5 5 km long, 2 to 4 ft, 1\u20134 m"),
        ("{{lang|fr|le mot}} and {{lang-de|Wort}}, {{nowrap|3 kg}}, H{{chem|2|O}}", "le mot and Wort, 3 kg, H2O"),
        ("{{lang|fr|<span style='a'>mot</span>}}, {{lang|2=mot|1=fr}}", "mot, mot"),
        ("{{nowrap|one|1=other}}", "other"),
        ("A ({{IPA|x}}; born 1900) b ({{IPAc-en|a}}) c ({{IPA|b}} or {{IPA|c}}) d", "A (born 1900) b c d"),
        ("b [{{cn}}], {{x}}, c {{x}}. D (''{{IPA|x}}''), e", "b, c. D, e"),
        ("a {{x}} {{y}} b{{x}}{{y}}c {{x}}", "a bc"),
        ("T&amp;N &#8211; &nbsp;x&#xD800;&#1; &amp;nbsp; A&B; AT&T", "T&N \u2013 x &nbsp; A&B; AT&T"),
        ("before\n{| class=x\n! head\n|-\n| cell\n|}\nafter", "before\n\nafter"),
        ("before\n{|\n| a\n{|\n| b\n|}\n| c {{d|\n|}}\n|}\nafter", "before\n\nafter"),
        ("before\n{| class=x\n| cell\n\nafter", "before\n\nafter"),
        ("before\n<onlyinclude>{| class=x\n| a\n|}</onlyinclude>\nafter", "before\n\nafter"),
        ("before\n<!-- c -->{| class=x\n| a\n<!-- e -->|}\nafter", "before\n\nafter"),
        (
            "<noinclude>The first season has ten.</noinclude> <includeonly>x</includeonly>More.",
            "The first season has ten. More.",
        ),
        ("{{nowrap|p {{=}} 0.05}}, {{nobr|a {{!}} b}}, [[long name{{!}}name]], |x{{!}}", "p = 0.05, a | b, name, |x|"),
        ("{{langx|de|Wort}} is a word", "Wort is a word"),
        ("{{quote|See [[Foo|a&#124;b]] and [[Foo|a{{!}}b]] more}} end", "See a|b and a|b more end"),
        ("Vrsta -{Homo sapiens}- je; \u5b98\u7f51 http://\u4e2d\u56fd.cn x", "Vrsta Homo sapiens je; \u5b98\u7f51 x"),
        ("2-{4-[bis]phenyl}-N and N-{3-chloro}-x", "2-{4-[bis]phenyl}-N and N-{3-chloro}-x"),
        (
            "\u5b98\u7f51\uff1ahttp://www.a.com\uff0c\u6210\u7acb\u4e8e1999\u5e74\u3002\u7ad9http://b.com/\u6210\u7acb",
            "\u5b98\u7f51\uff1a\uff0c\u6210\u7acb\u4e8e1999\u5e74\u3002\u7ad9\u6210\u7acb",
        ),
        ("a <math>x^2</math> b <gallery>\nA.jpg\n</gallery> <code>f()</code>", "a b f()"),
        ("a <nowiki>''[[b]]'' {c}</nowiki> d <nowiki/>e", "a b {c} d e"),
        ("x<sub>2</sub> <div>in a box</div> line<br/>break", "x2\nin a box\nline\nbreak"),
        ("if a < b and c > d then vector<int>", "if a < b and c > d then vector<int>"),
        ("* one\n* two\n: three\n# ''four''", "one\ntwo\nthree\nfour"),
        ("see [http://a.b label] and http://a.b/c?d [http://x.y] [mailto:a@b.c us].", "see label and us."),
        ("[https://a.b label [sic] [[river|end]]] [//c.d e]", "label [sic] end e"),
        (
            "lead\n== Part ==\ntext\n=== Empty ===\n== See also ==\n* x\n=== deeper ===\ny\n== Last ==\nend",
            "lead\n\nPart\n\ntext\n\nLast\n\nend",
        ),
        ("a\n== Kultur ==\n=== Literatur ===\nProsa.\n* Buch\n== Weblinks ==\nx", "a\n\nKultur\n\nLiteratur\n\nProsa."),
        ("a\n== Ссылки ==\n* x\n==関連項目==\n* y", "a"),
        ("* {{cite book}}. First of them.\n* {{cite}}.\n* kept", "First of them.\n\nkept"),
        ("__NOTOC__ text __NO_TITLE__ __KEIN_INHALTSVERZEICHNIS__ the __init__ method", "text the __init__ method"),
        ("...an opening and .at, then ... dots", "...an opening and .at, then ... dots"),
        ("-{zh-hans:联邦州; zh-hant:邦}-之一-{H|zh-cn:a;zh-tw:b}-和-{C}-", "联邦州之一和C"),
        (
            "他是-{[[乾隆帝|乾隆]]}-的\uff0c-{zh-cn:[[西班牙|A]];zh-tw:[[西班牙]]}-\uff0c-{zh-hans;zh-hant|甲}-很好",
            "他是乾隆的\uff0cA\uff0c甲很好",
        ),
        (
            "[[蘋果公司]]-{zh-cn:手机;zh-tw:手機}-\uff0cDVD-{A|zh-cn:光盘;zh-tw:光碟}-\uff0c第3-{只}-",
            "蘋果公司手机\uff0cDVD光盘\uff0c第3只",
        ),
        ("-{zh-hans:{{lang|en|x}};zh-hant:y}-很好-{-|zh:c}-", "x很好"),
        ("-{{{lang|ja|甲}}}-好-{zh-hant:y;zh-hans:{{lang|en|x}}}-乙{{nowrap|q-{{nowrap|z}}}}-w", "甲好x乙q-z-w"),
        (
            "Windows-{zh-cn:XP;zh-tw:XP}-系,DVD-{}-机中-{sr-ec|a}--{+|zh:c}--{zh-hk|d}--{zh-hk;zh-hans|e}-",
            "WindowsXP系,DVD机中ae",
        ),
        ("== A<br>B == <!-- c -->\ntext\n== C<br>D ==<ref>e</ref>\nf", "A B\n\ntext\n\nC D\n\nf"),
        ("باريس ({{lang-fr|Paris}}، {{IPA|fr|x}}) عاصمة <ref>x</ref>، و", "باريس (Paris) عاصمة، و"),
        ("== Geschichte<br />der Stadt ==\na<br>b\n== See also<br> ==\n* c", "Geschichte der Stadt\n\na\nb"),
        ("See [[:File:x.png|the map]], [[:Category:Rivers|rivers]] or [[:File:y.png]].", "See the map, rivers or."),
        ("a [[:File:A.png|thumb|right|Caption]] b", "a b"),
        ("[[.exe]], [[.mp3]], [[.ogg|Ogg]]; [[A (b) .png|thumb]]", ".exe, .mp3, Ogg;"),
        ("a[[File:A.jpg|thumb|From [http://x.org the archive]]] b", "a b"),
        ("see [[c|[http://x.org d]]], [[[e]]] f]]]", "see d, [e] f]"),
        ("{{tooltip|DNA|a molecule}}", "DNA"),
        (
            "a http://a.com/{{PAGENAME}}.html b \u00abhttp://a.com&raquo; (siehe http://a.com!) c",
            "a b \u00ab (siehe) c",
        ),
        ("See http://a.org/b.c. Then ftp://d?e=1, or http://f/... At last.", "See. Then, or... At last."),
        ("a http://a.org/?b=1&c=2&amp;d&nbsp;e &lt;http://f&gt; \u201chttp://g.\u201d", "a e <> \u201c.\u201d"),
        ("See http://a.org/x.<ref>c</ref> Next. <code>http://</code> begins it", "See. Next. http:// begins it"),
        (
            "a http://a.org/?id{{=}}5 b http://a/{{x|y}}/z http://a/&#37;20x/l\u2019h, http://a?q=&quot;x&quot; c",
            "a b, c",
        ),
        ("a<ref>b <!-- <ref name=x> --> c</ref> d<!-- <!-- <ref> --> e <!-- f-g -- <h> -->i", "a d e i"),
        ("la {{s|XIX}}, {{unité|5|km}}, le {{1er}} mai; {{s|слова}}", "la XIXe siècle, 5 km, le 1er mai; слова"),
        ("\u0645\u06cc\u200c\u062e\u0648\u200f\u00ad", "\u0645\u06cc\u200c\u062e\u0648"),
        ("\u05d0 \u202aabc\u202c \u2067def\u2069\u061c", "\u05d0 abc def"),
    ],
)
def test_markup(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize("sign", ["{{'}}", "&#39;", "&apos;", "<nowiki>'</nowiki>"])
@pytest.mark.parametrize("titles", [1, 2, 3])
def test_an_apostrophe_after_a_slanted_title_stays(sign: str, titles: int) -> None:
    """Beside the two that end the title it would be a third, and of an even number of those none is kept."""
    markup = " and ".join([f"''Dune''{sign}s plot"] * titles)
    assert plain_text(f"{markup} by ''Time''{{{{'s}}}} critic") == " and ".join(["Dune's plot"] * titles) + (
        " by Time's critic"
    )


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("[[CSI: Miami]], ''[[Re:Zero]]'', [[AC:DC]]", "CSI: Miami, Re:Zero, AC:DC"),
        ("[[It: Chapter Two]], [[it: a film]], [[re:view]]", "It: Chapter Two, it: a film, re:view"),
        ("a [[de:Fluss]][[simple:River]][[zh-min-nan:Hô]][[ it:Fiume]] b", "a b"),
        ("[[:de:Fluss]] and [[de:Fluss|a river]]", "de:Fluss and a river"),
    ],
)
def test_a_title_with_a_colon_is_no_link_to_another_language(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("a (''{{langue|de|texte=Autobahnen}}'') b", "a (Autobahnen) b"),
        ("{{ill|Quitzow (Perleberg)|de|lt=Quitzow}}, {{ill|Ort|de}}", "Quitzow, Ort"),
        ("{{仮リンク|日本語|en|Japanese|label=X}}は", "Xは"),
        ("{{lang|fr|mot|label=none}}", "mot"),
        ("b {{as of |alt=by 2017 revenues |2017 |post=), }} [[c]]", "b by 2017 revenues), c"),
        ("{{as of|2018|March}}, {{As of|lc=y|2011|08|19}}", "As of March 2018, as of 19 August 2011"),
        ("{{as of|2013|6|8|df=US}} {{as of|2013|since=y}}", "As of June 8, 2013 Since 2013"),
        ("{{as of|2 July 2014|bare=yes}}{{as of}}", "2 July 2014"),
        ("{{asof|2010|Jan|alt=<!-- no -->}}, {{as of|2017|<!-- June -->6}}", "As of January 2010, As of June 2017"),
        ("{{ill|Ort|de|lt=<!-- the same -->}}, {{langue|de|Wort|texte={{cn}}}}", "Ort, Wort"),
        ("entre {{heure|1}} et {{heure|4|30}}, {{heure|4|30|5}}{{heure}}", "entre 1 h et 4 h 30, 4 h 30 min 5 s"),
        ("dit {{incise|et plus|stop}}. Et {{incise|oui}} non", "dit \u2013 et plus. Et \u2013 oui \u2013 non"),
        ("{{quote|[[Mass\u2013energy|E = mc²]] is famous}} [[a|b=c]]", "E = mc² is famous b=c"),
        ("The {{convert<!-- x -->|5|km}} road", "The 5 km road"),
        ("имени {{нп5|Дальний Север|Дальнего Севера|en|Far North}}, {{нп5|Ф||}}", "имени Дальнего Севера, Ф"),
        ("{{не переведено|есть=:en:foo|надо=Фу|текст=фуу|язык=en}}{{нп|надо=Ы}}", "фууЫ"),
        ("{{tsl|en|Ohio|俄亥俄}}, {{tsl|en|x|y|z}}, {{tsl|en|x}}, {{tsl|en|x|y|}}", "俄亥俄, z, x, y"),
        ("the gymnasium {{ill|de|Ernestinum}} and {{ill|It|de|Es}}", "the gymnasium Ernestinum and It"),
        ("né le {{date|12|février|1990|en musique}}, {{date|2 mai 2020|en art}}", "né le 12 février 1990, 2 mai 2020"),
        ("en {{esd|100 km}} al{{esd}}x, {{1er|champion}} le {{1er}} mai", "en 100 km al x, 1er champion le 1er mai"),
        ("{{linktext|漢|字}} {{sic|hel|o}} {{font color|white|blue|c}} {{resize|d}}", "漢字 helo c d"),
        ("the word {{sic}}; next {{linktext|internal| |combustion}}", "the word; next internal combustion"),
        ("{{date|lundi|12|février|1990}}, {{date|12 mai|1990|en art}}", "lundi 12 février 1990, 12 mai 1990"),
    ],
)
def test_a_template_shows_the_words_a_reader_sees(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("See [[#History]] below", "See History below"),
        ("[HTTP://www.x.com the Label] a", "the Label a"),
        ("a http://www.x.org/Foo_(bar) b (see http://x.org/a) (http://x.org/a(b)c) d", "a b (see) d"),
        ("a\n----\n----The text\n---- == b", "a\n\nThe text\n== b"),
        ("[[Thể_loại:Foo]]text", "text"),
    ],
)
def test_links_addresses_and_rules(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("{{convert|6|ft|2|in|m}}", "6 ft 2 in"),
        ("{{convert|7|lb|3|oz|kg}}", "7 lb 3 oz"),
        ("{{convert|11|st|4|lb|2|oz|kg|0}}", "11 st 4 lb 2 oz"),
        ("{{cvt|1|mi|200|yd|km|2}}", "1 mi 200 yd"),
        ("{{convert|5|x|6|x|7|m}}", "5 x 6 x 7 m"),
        ("{{convert|1|-|2|-|3|m|ft}}", "1\u20132\u20133 m"),
        ("{{convert|6|ft|m|2}}", "6 ft"),
        ("{{convert|6|ft|m|in}}", "6 ft"),
        ("{{convert|6|ft|2|m}}", "6 ft"),
        ("{{convert|6|ft|2}} {{convert|6}}{{convert}}", "6 ft 6"),
        ("{{frac|3|1|2}}, {{sfrac|1|2}}, {{frac|8}}{{frac}}", "3 1/2, 1/2, 1/8"),
        ("{{convert|5|km2|sqmi}}, {{cvt|2|sqmi}}, {{convert|1|ft3|m3}}", "5 km², 2 sq mi, 1 cu ft"),
        ("{{convert|20|-|25|C|F}}, {{cvt|3|kg/m3}}, {{convert|4|acre|m2}}", "20\u201325 °C, 3 kg/m³, 4 acre"),
    ],
)
def test_the_figures_of_a_measure_are_whole(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("5{{frac|1|2}} of ({{frac|1|2}}), a {{frac|8}}, '''5'''{{frac|1|4}}", "5 1/2 of (1/2), a 1/8, 5 1/4"),
        ("{{convert|6|ft|{{frac|1|2}}|in|m}}", "6 ft 1/2 in"),
        ("<sup>2</sup>/<sub>3</sub>, 3<sup>1</sup>&frasl;<sub>2</sub>, {{sup|1}}/{{sub|2}}", "2/3, 3 1/2, 1/2"),
        ("3<sup>1</sup>/2, <sup>7</sup>\u2215<small>8</small>, m<sup>2</sup>/2", "3 1/2, 7/8, m²/2"),
        (
            "10<sup>9</sup> m<sup>\u22122</sup>, Ca<sup>2+</sup>, e<sup>&minus;</sup>, km{{sup|2}}",
            "10⁹ m⁻², Ca²⁺, e⁻, km²",
        ),
        (
            "10<sup>''9''</sup>, 10<sup>&nbsp;9<ref>x</ref></sup>, 10<sup>{{minus}}<small>9</small></sup>",
            "10⁹, 10⁹, 10⁻⁹",
        ),
        ("10<sup>&#8722;9</sup>, 10<SUP>\u20119</SUP>, <sup>14</sup>C", "10⁻⁹, 10⁻⁹, ¹⁴C"),
        ("2<sup>{{frac|1|12}}</sup>, 10<sup>0.4</sup>, x<sup>2,3</sup>", "2^(1/12), 10^(0.4), x2,3"),
        ("1<sup>st</sup>, x{{sup|n}}, y<sup>[1]</sup>, 10<sup>long words</sup>", "1st, xn, y[1], 10long words"),
        ("H<sub>2</sub>O, 1010<sub>2</sub>, log<sub>10</sub>100, x<sub>n</sub>", "H2O, 1010₂, log₁₀100, xn"),
        ("{{chem|SO|4|2-}}, {{chem2|SO4(2-)}}, {{chem|H|2|O}}", "SO4²⁻, SO4²⁻, H2O"),
        ("1.5{{e|9}}, XIX{{e}}, 2{{x10^|\u2013&nbsp;3}}, {{10^|-12}}", "1.5\u00d710⁹, XIXe, 2\u00d710⁻³, 10⁻¹²"),
        ("5<small>{{frac|1|2}}</small>, 5<small><sup>1</sup>&#8260;<sub>2</sub></small>", "5 1/2, 5 1/2"),
        ("<sup>235</sup><sub>92</sub>U, 10<sup>10<sup>34</sup></sup>", "²³⁵₉₂U, 101034"),
    ],
)
def test_a_figure_keeps_its_meaning(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("val|6.241|e=18|u=C", "6.241\u00d710¹⁸ C"),
        ("val|5|up=s", "5 /s"),
        ("val|1.2|0.1|e=-3|u=m", "(1.2±0.1)\u00d710⁻³ m"),
        ("val|1.602|(83)|e=-19|ul=C", "1.602(83)\u00d710⁻¹⁹ C"),
        ("val|5|+0.2|-0.3|u=Gyr", "5 +0.2 \u22120.3 Gyr"),
        ("val|2|to|3|u=km", "2 to 3 km"),
        ("val|50|-|100|u=K", "50\u2013100 K"),
        ("val|9.8|u=m/s2", "9.8 m/s²"),
        ("val|1000|u=kg|up=m3", "1000 kg/m³"),
        ("val|5|u=deg", "5°"),
        ("val|25|u=degC", "25 °C"),
        ("val|1.2e6|u=um", "1.2\u00d710⁶ µm"),
        ("val|e=6|u=K", "10⁶ K"),
        ("val", ""),
        ("unité|5|e=3|kg", "5\u00d710³ kg"),
        ("unité|9.8|m||s|-2", "9.8 m s⁻²"),
        ("unité|1.23|m|/s|-2|±=0.05|e=5", "(1.23±0.05)\u00d710⁵ m/s⁻²"),
        ("unité|10|+=1|-=2|m", "10 +1 \u22122 m"),
        ("unidad|5|km|2", "5 km²"),
        ("unité|10|à|20|km", "10 à 20 km"),
        ("nombre|3|sur|4|enfants", "3 sur 4 enfants"),
        ("unité|17|h|30|min", "17 h 30 min"),
        ("unité|10|à=20|km", "10 à 20 km"),
        ("nombre|3|ou|4|personnes", "3 ou 4 personnes"),
        ("unité|1.23 ±0.05 e5 m/s-2", "1.23 ±0.05\u00d710⁵ m/s⁻²"),
        ("unité|120|km&sup2;", "120 km²"),
        ("unité|15|tonnes de CO2", "15 tonnes de CO2"),
        ("nombre|3|[[Formule 1|F1]]", "3 F1"),
        ("convert|120|gCO2/km", "120 gCO2/km"),
        ("val|5|u=CH4", "5 CH4"),
        ("val|p=<|5|s=+|u=%|end=.", "<5+%."),
        ("val|5|(2)|(3)|u=nm", "5(2)(3) nm"),
        ("val|1.5|+0.2|&minus;0.1", "1.5 +0.2 \u22120.1"),
        ("val|1.5|±0.2|", "1.5±0.2"),
        ("chem|CO|2| + |H|2|O", "CO2+H2O"),
        ("chem|Na|+|Cl|-", "Na⁺Cl⁻"),
        ("chem2|(+)-C4H6", "(+)-C4H6"),
        ("nombre|1.5|e=6|habitants", "1.5\u00d710⁶ habitants"),
        ("convert|5|km2|sqmi", "5 km²"),
        ("cvt|2|sqmi", "2 sq mi"),
        ("convert|1|ft3|m3", "1 cu ft"),
        ("convert|20|-|25|C|F", "20\u201325 °C"),
        ("convert|3|±|6|ft", "3 ± 6 ft"),
        ("convert|3|+/-|6|ft", "3 ± 6 ft"),
        ("convert|2|to(-)|4|km", "2 to 4 km"),
        ("convert|3|,|6|, or|7|ft", "3, 6, or 7 ft"),
        ("convert|3|xx|6|ft", "3 \u00d7 6 ft"),
        ("cvt|3|kg/m3", "3 kg/m³"),
        ("convert|1.5|e6km2", "1.5 million km²"),
        ("convert|12|PD/sqmi", "12 inhabitants/sq mi"),
        ("convert|4|acre|m2", "4 acre"),
    ],
)
def test_the_signs_of_units_errors_and_powers(body: str, expected: str) -> None:
    assert plain_text(f"{{{{{body}}}}}") == expected


@pytest.mark.parametrize(
    "opaque",
    [
        "begin with <nowiki><!--</nowiki>.<ref>Cite 1</ref> They end with <nowiki>--></nowiki>.",
        "begin with <syntaxhighlight><!-- a</syntaxhighlight>.<ref>b</ref> They end with <source>c --></source>.",
        "begin with <ref>a <!-- b</ref>.<ref>c --></ref> They end with.",
    ],
)
def test_a_comment_that_is_only_shown_is_none(opaque: str) -> None:
    assert plain_text(opaque) == "begin with. They end with."


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("l'''Encyclopédie'' et", "l'Encyclopédie et"),
        ("dell'''arte'' e '''grassetto'''", "dell'arte e grassetto"),
        ("'''''both''''' ''a'' '''b'''", "both a b"),
        ("''Eagle'''s twin", "Eagle's twin"),
        ("''''quoted bold''''", "'quoted bold'"),
        ("l''''air''' et ''x", "l'air et x"),
    ],
)
def test_an_apostrophe_before_a_quote_run_stays(line: str, expected: str) -> None:
    assert unquoted(line) == expected


@pytest.mark.parametrize("line", ["For all a<b we go on.", "Here 0<p<1 and x<s or x<u.", "If i<q = 5 it ends."])
def test_a_less_sign_before_a_tags_name_loses_nothing(line: str) -> None:
    assert plain_text(f"{line} Another one.\nNext line.") == f"{line} Another one.\nNext line."


@pytest.mark.parametrize("markup", ["{{open a", "[[open|b", "{| x\n| y\n", "<ref>never closed", "a ]] }} b", "=== x"])
def test_broken_markup_leaves_no_signs_and_loses_no_text(markup: str) -> None:
    text = plain_text(f"prose {markup} more\n\nlater")
    assert text.startswith("prose")
    assert text.endswith("later")
    assert "more" in text
    assert not any(sign in text for sign in SIGNS)


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("prose <ref Smith 2010 more prose.\nNext.", "prose Smith 2010 more prose.\nNext."),
        ("prose<ref name=x Smith 2010, p. 5 more.\n\nNext.", "prose Smith 2010, p. 5 more.\n\nNext."),
        ("prose<ref name='x y' / more <span style=\"a: b\" of it", "prose more of it"),
        ("prose <ref Smith 2010>cited</ref> more.", "prose more."),
        ("one <ref Smith 2010 and <ref>cited</ref>two", "one Smith 2010 and two"),
    ],
)
def test_an_unclosed_tag_takes_nothing_with_it(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize("odd", ['<refname="a">cited</ref>', "&lt;references /&gt;", "Levels <reference range"])
def test_a_word_that_begins_as_a_tag_does_leaves_the_rest_alone(odd: str) -> None:
    text = plain_text(f"The dog's bone isn't [sic] here = 5.\n{odd}\nIt's {{so}}.")
    assert text.startswith("The dog's bone isn't [sic] here = 5.\n")
    assert text.endswith("\nIt's {so}.")


OPENED = ["{{infobox\n| a = b\n", "[[File:a.jpg|thumb|", "{|\n|-\n| a\n", "<ref>{{cite", "<!--x-->{{a|[["]


@pytest.mark.parametrize("opened", OPENED)
def test_what_follows_an_unclosed_bracket_is_kept(opened: str) -> None:
    assert "The river is long." in plain_text(f"{opened}\nThe river is long.\n\nIt is [[old]] and {{{{nowrap|5 km}}}}.")
    assert plain_text(f"{opened}\n\nIt is [[old]] and {{{{nowrap|5 km}}}}.").endswith("It is old and 5 km.")


@settings(max_examples=200)
@given(st.lists(st.sampled_from([*PIECES.split(), "\n", " ", "[http://x ", "== "]), max_size=30))
def test_any_mix_of_signs_is_survived(parts: list[str]) -> None:
    text = plain_text("".join(parts))
    assert not any(sign in text for sign in SIGNS)
    assert "\n\n\n" not in text
    assert text == text.strip()


WORST = {
    "unclosed templates": "{{a|b " * 60_000,
    "unclosed links": "[[a|b " * 60_000,
    "unclosed tables": "\n{|\n|a\n" * 40_000,
    "tables in templates": "{{x|\n{|\n|-\n|a\n|}\n}}" * 20_000,
    "nested 50 deep": ("{{a|" * 50 + "x" + "}}" * 50) * 1_500,
    "nested 100,000 deep": "{{" * 100_000 + "}}" * 100_000,
    "only closing": "]]}}" * 80_000,
    "crossed": "[[ }} {{ ]] " * 30_000,
    "references": "<ref>a " * 60_000,
    "comments": "<!-- " * 60_000,
    "closed comments in references": "<ref><!-- <ref> -->" * 15_000,
    "dashes": "<!--" + "-" * 300_000,
    "stops": "http://a" + "." * 300_000,
    "addresses that are stops": "http://." * 40_000,
    "raised": "<sup>2" * 50_000,
    "measures": "{{cvt|a b c d " * 12_000 + "}}" * 12_000,
    "quantities": "{{unité|5|abcdefgh " * 12_000 + "}}" * 12_000,
    "values": "{{val|a b c d " * 12_000 + "}}" * 12_000,
    "raised templates": "{{sup|" * 20_000 + "}}" * 20_000,
    "powers of ten": "{{e|" * 300_000 + "}}" * 300_000,
    "formulas": "{{chem|(" * 30_000 + ")}}" * 30_000,
    "lowered": "{{sub|" * 30_000 + "}}" * 30_000,
    "errors": "{{unité|5" + "|a" * 40_000 + "|+=" * 40_000 + "}}",
    "blanks before a name": "{{em|" + " " * 300_000 + "x}}",
    "blanks after a name": "{{em|x" + " " * 300_000 + "x}}",
    "raised blanks": "<sup>" + " " * 300_000,
    "raised tags": "<sup>" + "<b>" * 100_000,
    "fractions": "<sup>1</sup>" + " " * 300_000,
    "quotes after a number": "{{frac|2}} 5" + "''" * 150_000,
    "nowiki": "<nowiki>" * 50_000,
    "angles": "<" * 300_000,
    "tags": "<span a='" * 40_000,
    "attributes": "<span" + " a='b c=" * 40_000,
    "addresses": "[http://a " * 60_000,
    "brackets": "[" * 300_000,
    "quotes": "''a'''b " * 60_001,
    "holes": "long text " * 1_000 + "{{x}} " * 80_000,
    "parentheses": "( {{x}} ," * 50_000,
    "headings": "== a ==\n" * 40_000,
    "signs in a heading": "=" * 150_000 + "x=" * 50_000,
    "underscores": "__A" * 100_000,
    "spaces": "\n \t" * 100_000,
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_pages_finish(name: str) -> None:
    """A bound on hanging, not on speed: 300 kB of these take well under a second, or hours if quadratic."""
    begun = time.process_time()
    plain_text(WORST[name])
    assert time.process_time() - begun < 30


DISAMBIGUATION = (
    "{{disambig}}",
    "{{Disambiguation|geo}}",
    "{{ Hndis |x}}",
    "{{Human name disambiguation|Smith, John}}",
    "{{Military_unit disambiguation}}",
    "__DISAMBIG__",
    "{{dp}}",
)


@pytest.mark.parametrize("markup", DISAMBIGUATION)
def test_disambiguation_that_is_told_of(markup: str) -> None:
    """In a comment, or as it is written."""
    text = "Paris is the capital of France and a large city on the Seine."
    for aside in (f"<!-- was {markup} -->", f"<nowiki>{markup}</nowiki>", f"<!-- was {markup}"):
        page = Page("1", "Paris", 0, False, f"{text} {aside}")
        assert isinstance(convert(page, SILENT, 40), Document)
        assert convert(page._replace(wikitext=f"{text} {markup} {aside}"), SILENT, 40) == "disambiguation"


@pytest.mark.parametrize("markup", DISAMBIGUATION)
def test_disambiguation(markup: str) -> None:
    assert is_disambiguation("River", f"text {markup}")
    assert not is_disambiguation("River", "text {{disambiguation needed}} {{dp|x}}")
    assert is_disambiguation("River (disambiguation)", "")


@pytest.mark.parametrize(
    "name",
    [
        "Begriffsklärung",
        "Homonymie",
        "desambiguación",
        "Disambigua",
        "Неоднозначность",
        "曖昧さ回避",
        "消歧义",
        "توضيح",
        "פירושונים",
        "Desambiguação",
        "Doorverwijspagina",
        "trang_định_hướng",
    ],
)
def test_disambiguation_in_other_languages(name: str) -> None:
    assert is_disambiguation("X", f"{{{{{name}}}}}")
    assert is_disambiguation("X", f"{{{{ {name.replace('_', ' ').title()} |a}}}}")


@pytest.mark.parametrize("hatnote", ["{{nota disambigua|altri|Roma (disambigua)}}", "{{Однофамильцы|Гагарин}}"])
def test_an_article_that_points_to_a_disambiguation_page_is_none(hatnote: str) -> None:
    assert not is_disambiguation("Roma", f"{hatnote}\n'''Roma''' è la capitale.")


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (Page("1", "T", 1, False, "long enough " * 9), "not in the main namespace"),
        (Page("1", "T", 0, True, "long enough " * 9), "redirect"),
        (Page("1", "T", 0, False, "#REDIRECT [[X]] long enough, " * 9), "redirect"),
        (Page("1", "T", 0, False, "{{dab}} long enough, " * 9), "disambiguation"),
        (Page("1", "T", 0, False, "{{infobox|long enough, long enough, long enough}} x"), "too short"),
    ],
)
def test_every_dropped_page_has_its_reason(page: Page, reason: str) -> None:
    assert convert(page, SILENT, 40) == reason
