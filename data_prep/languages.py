"""The words by which wikis of several languages mark what is no prose.

A page is read with the words of all these languages together: "Weblinks" closes an article wherever it stands, the
headers of small dumps are not always those of their wiki, and a dump's own header lacks the older names that its pages
still use. For a language that is not here, the header tells the names for files and categories.
"""

import re
from typing import NamedTuple


class Words(NamedTuple):
    """Lower case, spaces as _; `closing` are headings, parted by |."""

    silent: str
    """Names of the namespaces Media, File and Category: a link to them shows no text."""
    disambiguation: str
    """Templates that mark a page as one; not the hatnotes of articles that point to such a page."""
    suffix: str
    """What its title ends in."""
    closing: str
    """Headings of the sections after the text: references, links, literature."""


# English pages that list namesakes are marked by what they list, too, under long names and short ones.
_ENGLISH_KINDS = (
    "airport biology call_sign caselaw chinese_title church genus given_name hospital human_name letter math "
    "mathematical mathematics military_unit music number opus_number phonetics place_name portal road school ship "
    "species_latin_name_abbreviation station surname synagogue taxonomic_authority taxonomy"
)
_TABLE = {
    "en": Words(
        silent="media file image category",
        disambiguation=(
            "disambig disambiguation disambiguation-cleanup disambiguation_cleanup disambiguation_page "
            "disambig-cleanup disamb dab hndis geodis hospitaldis mathdab schooldis surname-dis surnamedis roaddis "
            "numberdis callsigndis shipdis mountainindex letter-number_combination_disambiguation "
            "species_latin_name_disambiguation " + " ".join(f"{kind}_disambiguation" for kind in _ENGLISH_KINDS.split())
        ),
        suffix="(disambiguation)",
        closing=(
            "see also|references|external links|external link|further reading|notes|footnotes|citations|bibliography|"
            "sources|works cited|notes and references|references and notes|footnotes and references|gallery|"
            "related pages|other websites|explanatory notes|general references|cited sources|"
            "references and further reading"
        ),
    ),
    "de": Words(
        silent="datei bild kategorie medium",
        disambiguation="begriffsklärung",
        suffix="(begriffsklärung)",
        closing=(
            "weblinks|weblink|einzelnachweise|einzelnachweis|literatur|siehe auch|quellen|anmerkungen|fußnoten|"
            "belege|einzelnachweise und anmerkungen|anmerkungen und einzelnachweise|literatur und quellen|galerie"
        ),
    ),
    "fr": Words(
        silent="fichier image catégorie média",
        disambiguation="homonymie homonymes patronymie paronymie toponymie homonymie_de_clubs_sportifs",
        suffix="(homonymie)",
        closing=(
            "voir aussi|notes et références|références|notes|liens externes|lien externe|bibliographie|"
            "articles connexes|article connexe|annexes|sources|galerie|références et notes|sources et références|"
            "liens et sources"
        ),
    ),
    "es": Words(
        silent="archivo imagen categoría medio",
        disambiguation="desambiguación desambiguacion desambig",
        suffix="(desambiguación)",
        closing=(
            "véase también|referencias|enlaces externos|enlace externo|bibliografía|notas|notas y referencias|"
            "fuentes|referencias y notas|lecturas adicionales|galería"
        ),
    ),
    "it": Words(
        silent="immagine categoria",
        disambiguation="disambigua",
        suffix="(disambigua)",
        closing=(
            "note|bibliografia|voci correlate|altri progetti|collegamenti esterni|riferimenti|fonti|galleria d'immagini"
        ),
    ),
    "nl": Words(
        silent="bestand afbeelding categorie",
        disambiguation="dpintro doorverwijspagina",
        suffix="(doorverwijspagina)",
        closing=(
            "zie ook|externe links|externe link|externe koppelingen|bronnen|bronnen, noten en/of referenties|"
            "referenties|literatuur|bronvermelding|voetnoten|noten|bronnen en referenties|bronnen en noten|"
            "verder lezen"
        ),
    ),
    "pt": Words(
        silent="ficheiro arquivo imagem categoria multimédia",
        disambiguation="desambiguação desambiguacao desambig desamb",
        suffix="(desambiguação)",
        closing=(
            "ver também|referências|ligações externas|ligação externa|links externos|bibliografia|notas|"
            "notas e referências|referências bibliográficas|fontes|galeria|leitura adicional|notas de rodapé"
        ),
    ),
    "ru": Words(
        silent="файл изображение категория медиа",
        disambiguation="неоднозначность многозначность список_однофамильцев список_омонимов",
        suffix="(значения)",
        closing="см. также|примечания|ссылки|литература|источники|сноски|библиография|галерея|комментарии",
    ),
    "ja": Words(
        silent="ファイル 画像 カテゴリ メディア",
        disambiguation="aimai 曖昧さ回避 人名の曖昧さ回避 地名の曖昧さ回避",
        suffix="(曖昧さ回避)",
        closing="脚注|注釈|出典|参考文献|関連項目|外部リンク|関連文献|参照|注|注釈・出典|出典・脚注|脚注・出典|参考資料|ギャラリー",
    ),
    "zh": Words(
        silent="文件 檔案 档案 图像 圖像 图片 圖片 分类 分類 媒体 媒體",
        disambiguation="消歧义 消歧義 消歧义页 消歧義頁 人名消歧义 人名消歧義 地名消歧义 地名消歧義",
        suffix="(消歧义)",
        closing=(
            "参考文献|參考文獻|外部链接|外部連結|外部鏈接|外部連接|参见|參見|参看|參看|注释|註釋|注釋|参考资料|參考資料|延伸阅读|延伸閱讀|相关条目|相關條目|脚注|腳註|脚註|参考来源|參考來源|备注|"
            "備註|资料来源|資料來源|图集|参考|參考|注解|註解"
        ),
    ),
    "ar": Words(
        silent="ملف صورة تصنيف ميديا",
        disambiguation="توضيح صفحة_توضيح توضيح_أشخاص",
        suffix="(توضيح)",
        closing=(
            "مراجع|المراجع|وصلات خارجية|روابط خارجية|انظر أيضا|انظر أيضًا|انظر أيضاً|مصادر|المصادر|هوامش|ملاحظات|"
            "مصادر ومراجع|مراجع ومصادر|معرض صور|إقرأ أيضا|اقرأ أيضا|طالع أيضا|طالع أيضًا|وصلات داخلية|"
            "المراجع والمصادر"
        ),
    ),
    "he": Words(
        silent="קובץ תמונה קטגוריה מדיה",
        disambiguation="פירושונים",
        suffix="(פירושונים)",
        closing="ראו גם|קישורים חיצוניים|הערות שוליים|לקריאה נוספת|מקורות|ביבליוגרפיה|הערות|גלריה|גלריית תמונות",
    ),
    "vi": Words(
        silent="tập_tin hình thể_loại phương_tiện",
        disambiguation="định_hướng trang_định_hướng định_hướng_nhân_danh thế_giới_định_hướng",
        suffix="(định hướng)",
        closing=(
            "tham khảo|liên kết ngoài|xem thêm|chú thích|ghi chú|thư mục|đọc thêm|nguồn|nguồn tham khảo|chú giải|"
            "hình ảnh|tài liệu tham khảo|thư mục tham khảo|tham chiếu|thư viện ảnh"
        ),
    ),
}
# The Wikipedias, as a page links to itself in other languages: [[de:Fluss]].
_CODES = """
aa ab ace ady af ak als alt am ami an ang ann anp ar arc ary arz as ast atj av avk awa ay az azb ba ban bar bat-smg bbc
bcl bdr be be-tarask be-x-old bew bg bh bi bjn blk bm bn bo bpy br bs btm bug bxr ca cbk-zam cdo ce ceb ch cho chr chy
ckb co cr crh cs csb cu cv cy da dag de dga din diq dsb dtp dty dv dz ee egl el eml en eo es et eu ext fa fat ff fi
fiu-vro fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk gn gom gor got gpe gsw gu guc gur guw gv ha hak haw he hi
hif ho hr hsb ht hu hy hyw hz ia iba id ie ig igl ii ik ilo inh io is it iu ja jam jbo jv ka kaa kab kbd kbp kcg kg kge
ki kj kk kl km kn knc ko koi kr krc ks ksh ku kus kv kw ky la lad lb lbe lez lfn lg li lij lld lmo ln lo lrc lt ltg lv
lzh mad mai map-bms mdf mg mh mhr mi min mk ml mn mni mnw mo mos mr mrj ms mt mus mwl my myv mzn na nah nan nap nb nds
nds-nl ne new ng nia nl nn no nov nqo nr nrm nso nup nv ny oc olo om or os pa pag pam pap pcd pcm pdc pfl pi pih pl pms
pnb pnt ps pt pwn qu rm rmy rn ro roa-rup roa-tara rsk ru rue rup rw sa sah sat sc scn sco sd se sg sgs sh shi shn shy
si simple sk skr sl sm smn sn so sq sr srn ss st stq su sv sw syl szl szy ta tay tcy tdd te tet tg th ti tig tk tl tly
tn to tpi tr trv ts tt tum tw ty tyv udm ug uk ur uz ve vec vep vi vls vo vro wa war wo wuu xal xh xmf yi yo yue za zea
zgh zh zh-classical zh-min-nan zh-yue zu
"""
CODES = frozenset(_CODES.split())
SILENT = frozenset(name.replace("_", " ") for words in _TABLE.values() for name in words.silent.split())
CLOSING = frozenset(heading for words in _TABLE.values() for heading in words.closing.split("|"))
_SUFFIXES = tuple(words.suffix for words in _TABLE.values())
_NAMES = sorted({name for words in _TABLE.values() for name in words.disambiguation.split()})
_ANY = "|".join(re.escape(name).replace("_", "[ _]") for name in _NAMES)
# dp: the Dutch one; too short a word to be looked for with arguments.
_TEMPLATE = re.compile(rf"\{{\{{\s*(?:(?:{_ANY})\s*(?:\||\}}\}})|dp\s*\}}\}})|__DISAMBIG__", re.IGNORECASE)


def is_disambiguation(title: str, wikitext: str) -> bool:
    return title.casefold().endswith(_SUFFIXES) or bool(_TEMPLATE.search(wikitext))
