"""bzip2 from any place: the blocks that begin in a range of the compressed bytes, unpacked each by itself.

A bzip2 file is a row of blocks of up to 900 kB, each with its own checksum, that begin at any bit after a fixed sign of
48 bits. Found by that sign, a block is unpacked as a stream of one block. So one stream, many (multistream dumps,
pbzip2) and any mix of them are read in parallel alike, and no index is needed.
"""

import bz2
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO

_BLOCK = 0x314159265359
_STREAM_END = 0x177245385090
_SIGN_BITS = 48
_CRC_BITS = 32
# From the sign of a stream's end to the next stream's first: the sign, a checksum, up to 7 bits of padding, "BZh9".
_MOST_BETWEEN = _SIGN_BITS + _CRC_BITS + 7 + 32
_WINDOW = 2**20
# A sign may stand within a block by chance (once in 2^48 bits); the true end is then a later one.
_FALSE_SIGNS = 3


def unpacked(path: Path, start: int, stop: int) -> Iterator[tuple[bytes, bool]]:
    """The contents of the blocks from byte `start` to the end of the file, and whether a block begins before `stop`.

    Raises: ValueError for a damaged or missing block.
    """
    with path.open("rb") as file:
        marks: list[tuple[int, bool]] = []
        for mark in _marks(path, start):
            marks.append(mark)
            while len(marks) > _FALSE_SIGNS:
                yield from _first(file, marks, stop)
        if not marks and start == 0:
            raise ValueError("it is not bzip2")
        while marks:
            yield from _first(file, marks, stop)


def _first(file: IO[bytes], marks: list[tuple[int, bool]], stop: int) -> Iterator[tuple[bytes, bool]]:
    """Unpack the block at the first mark and drop the marks up to its end."""
    begin, is_block = marks.pop(0)
    if not is_block:
        following = marks[0][0] - begin > _MOST_BETWEEN if marks else _stream_begins(file, begin)
        if following:
            raise ValueError(f"the bzip2 stream after byte {begin // 8:,} has no block")
        return
    for count, (end, _) in enumerate(islice(marks, _FALSE_SIGNS)):
        content = _block(file, begin, end)
        if content is not None:
            del marks[:count]
            yield content, begin < 8 * stop
            return
    raise ValueError(f"the bzip2 block at byte {begin // 8:,} is cut off or has a wrong checksum")


def _stream_begins(file: IO[bytes], end: int) -> bool:
    """Whether another stream follows the sign at bit `end`. Other bytes may: bzip2 leaves them out, too."""
    file.seek((end + _SIGN_BITS + _CRC_BITS + 7) // 8)
    return file.read(3) == b"BZh"


def _block(file: IO[bytes], begin: int, end: int) -> bytes | None:
    """The content of the block between two bit positions; None where it is no whole block."""
    file.seek(begin // 8)
    data = file.read((end + 7) // 8 - begin // 8)
    length = end - begin
    bits = (int.from_bytes(data) >> (-end % 8)) & ((1 << length) - 1)
    crc = (bits >> (length - _SIGN_BITS - _CRC_BITS)) & (2**_CRC_BITS - 1)
    # A stream of one block ends in that block's own checksum.
    stream = ((bits << _SIGN_BITS | _STREAM_END) << _CRC_BITS) | crc
    length += _SIGN_BITS + _CRC_BITS
    unpacker = bz2.BZ2Decompressor()
    try:
        content = unpacker.decompress(b"BZh9" + (stream << (-length % 8)).to_bytes((length + 7) // 8))
    except OSError:
        return None
    return content if unpacker.eof else None


def _marks(path: Path, start: int) -> Iterator[tuple[int, bool]]:
    """The bit position of every sign from byte `start` on, and whether a block begins there or a stream ends."""
    with path.open("rb") as file:
        file.seek(start)
        window, offset, last = b"", start, -1
        while data := file.read(_WINDOW):
            window += data
            for bit, is_block in sorted((*_find(window, _BLOCK, True), *_find(window, _STREAM_END, False))):
                # The overlap of two windows may hold a whole sign.
                if offset * 8 + bit > last:
                    last = offset * 8 + bit
                    yield last, is_block
            kept = window[-(_SIGN_BITS // 8) :]
            offset += len(window) - len(kept)
            window = kept


def _find(window: bytes, sign: int, is_block: bool) -> Iterator[tuple[int, bool]]:
    for shift in range(8):
        # The bytes that the sign fills whole when it begins `shift` bits into a byte.
        whole = (sign << (8 - shift)).to_bytes(7)[1:6] if shift else sign.to_bytes(6)
        position = window.find(whole)
        while position >= 0:
            begin = position - 1 if shift else position
            found = int.from_bytes(window[begin : begin + 7].ljust(7, b"\0")) >> (8 - shift)
            if begin >= 0 and begin * 8 + shift + _SIGN_BITS <= len(window) * 8 and found & (2**_SIGN_BITS - 1) == sign:
                yield begin * 8 + shift, is_block
            position = window.find(whole, position + 1)
