"""The command `merge`: what `--shard i/n` made on n machines -> the folder that one machine would have made."""

from asa import manifest
from asa.errors import RequestError, WorkError
from data_prep import stored
from data_prep.config import MergeConfig
from data_prep.extract import count_up, print_documents
from data_prep.finished import is_up_to_date
from data_prep.merge_shards import FLAG, merge_shards
from data_prep.share import check_whole
from data_prep.workspace import workspace

KIND = "documents"


def merge(config: MergeConfig) -> None:
    """Join the parts, folders of documents or of `build`, into OUT, every byte verified.

    Raises: RequestError where a part is missing, there twice, or made from other inputs or settings; WorkError for a
        damaged part, or where none has a document.
    """
    if config.out.resolve() in [part.resolve() for part in config.parts]:
        raise RequestError(f"{config.out} is one of the parts, which are left as they are; set another --out")
    if (config.parts[0] / "shards").is_dir():
        merge_shards(config.parts, config.out, config.overwrite)
        return
    facts = [manifest.read(part, KIND, FLAG) for part in config.parts]
    check_whole(config.parts, facts, ["documents"])
    whole = {**facts[0], "documents": count_up([fact["documents"] for fact in facts]), "shard": "0/1"}
    if not whole["documents"]["kept"]:
        raise WorkError(f"no part has a document (dropped: {whole['documents']['dropped']}); give more text")
    if is_up_to_date(config.out, {KIND: config.out}, whole, config.overwrite):
        return
    with workspace(config.out, whole, config.overwrite) as space:
        stored.copy(config.parts, KIND, space.out, FLAG)
        manifest.write(space.out, KIND, whole)
    print_documents(whole["documents"]["kept"], whole["documents"]["dropped"])
    print(f"{len(config.parts)} parts joined; written to {config.out}")
