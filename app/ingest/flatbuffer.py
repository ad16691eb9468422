"""As much of a flatbuffer as tells whether an Arrow message is compressed inside.

pyarrow decompresses such buffers to whatever length they claim, and offers no way to look before.
"""

import struct

from app.errors import Malformed

# The numbers of fields in Arrow's Message.fbs: of a message, a dictionary and a record batch.
HEADER_TYPE, HEADER = 1, 2
DICTIONARY_DATA = 1
COMPRESSION = 3
# The values of a message's header type.
DICTIONARY_BATCH, RECORD_BATCH = 2, 3


def is_compressed(message: bytes) -> bool:
    """Whether the buffers of an Arrow message are compressed, by the message's metadata."""
    try:
        root = _follow(message, 0)
        kind = _field(message, root, HEADER_TYPE)
        header = _field(message, root, HEADER)
        if kind is None or header is None:
            return False
        batch: int | None = _follow(message, header)
        if message[kind] == DICTIONARY_BATCH:
            data = _field(message, batch or 0, DICTIONARY_DATA)
            batch = None if data is None else _follow(message, data)
        elif message[kind] != RECORD_BATCH:
            return False
        return batch is not None and _field(message, batch, COMPRESSION) is not None
    except (struct.error, IndexError):
        raise Malformed("the body is not a valid Arrow stream: a message ends too soon") from None


def _follow(message: bytes, place: int) -> int:
    """Where the offset at this place leads to."""
    return place + int(struct.unpack_from("<I", message, place)[0])


def _field(message: bytes, table: int, number: int) -> int | None:
    """Where a field of a table stands, None for one that is left out."""
    fields = table - int(struct.unpack_from("<i", message, table)[0])
    if fields < 0:
        raise IndexError
    size = int(struct.unpack_from("<H", message, fields)[0])
    entry = 4 + 2 * number
    if entry >= size:
        return None
    offset = int(struct.unpack_from("<H", message, fields + entry)[0])
    return table + offset if offset else None
