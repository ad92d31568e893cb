"""A file encrypted in pieces, so that it is written as a stream and read anywhere.

AES-256-GCM over pieces of 1 MiB, as STREAM of Hoang, Reyhanitabar, Rogaway and Vizár (2015) does: the nonce of a piece
is its number and whether it is the last one. So a piece that was changed, moved or cut off is detected. The key is
derived from the content of the key file by scrypt, with a salt of its own for each file.
"""

import hashlib
import io
import os
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"weft backup, encrypted 1\n"
PIECE_BYTES = 1 << 20
TAG_BYTES = 16
SALT_BYTES = 16
HEAD_BYTES = len(MAGIC) + SALT_BYTES + TAG_BYTES
_CHECK = 2  # the kind of the nonce whose tag shows, in the head, whether the key is the right one
_LAST = 1


class WrongKeyError(Exception):
    """The file was encrypted with another key."""


class ChangedError(Exception):
    """The file was cut off or changed after it was encrypted."""


class EncryptingWriter(io.RawIOBase):
    """Encrypts what is written to it. Only `finish` makes the file whole."""

    def __init__(self, file: BinaryIO, secret: bytes) -> None:
        salt = os.urandom(SALT_BYTES)
        self._file, self._cipher = file, _cipher(secret, salt)
        self._waiting = bytearray()
        self._pieces = self._position = 0
        self._head = MAGIC + salt
        file.write(self._head + self._cipher.encrypt(_nonce(0, _CHECK), b"", self._head))

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]
        view = memoryview(data).cast("B")
        self._waiting += view
        self._position += len(view)
        while len(self._waiting) > PIECE_BYTES:  # the last piece is never known before the end
            self._put(bytes(self._waiting[:PIECE_BYTES]), 0)
            del self._waiting[:PIECE_BYTES]
        return len(view)

    def finish(self) -> None:
        self._put(bytes(self._waiting), _LAST)

    def _put(self, piece: bytes, kind: int) -> None:
        self._file.write(self._cipher.encrypt(_nonce(self._pieces, kind), piece, self._head))
        self._pieces += 1


class DecryptingReader(io.RawIOBase):
    """Reads an encrypted file, from any position. Raises WrongKeyError and ChangedError, also from `read`."""

    def __init__(self, file: BinaryIO, secret: bytes) -> None:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        head = file.read(HEAD_BYTES)
        if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
            raise ChangedError
        self._file, self._head = file, head[:-TAG_BYTES]
        self._cipher = _cipher(secret, self._head[len(MAGIC) :])
        try:
            self._cipher.decrypt(_nonce(0, _CHECK), head[-TAG_BYTES:], self._head)
        except InvalidTag:
            raise WrongKeyError from None
        body = size - HEAD_BYTES
        self._pieces = -(-body // (PIECE_BYTES + TAG_BYTES))
        self._size = body - self._pieces * TAG_BYTES
        self._position, self._held = 0, (-1, b"")
        self._piece(self._pieces - 1)  # a file that was cut off has no last piece

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError("a position before the beginning of the file")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: "bytearray | memoryview", /) -> int:  # type: ignore[override]
        if self._position >= self._size:
            return 0
        number, begin = divmod(self._position, PIECE_BYTES)
        found = self._piece(number)[begin : begin + len(buffer)]
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)

    def _piece(self, number: int) -> bytes:
        if self._held[0] != number:
            if number < 0:
                raise ChangedError
            self._file.seek(HEAD_BYTES + number * (PIECE_BYTES + TAG_BYTES))
            kind = _LAST if number == self._pieces - 1 else 0
            encrypted = self._file.read(PIECE_BYTES + TAG_BYTES)
            try:
                self._held = (number, self._cipher.decrypt(_nonce(number, kind), encrypted, self._head))
            except InvalidTag:
                raise ChangedError from None
        return self._held[1]


def _cipher(secret: bytes, salt: bytes) -> AESGCM:
    return AESGCM(hashlib.scrypt(secret, salt=salt, n=2**15, r=8, p=1, maxmem=1 << 26, dklen=32))


def _nonce(number: int, kind: int) -> bytes:
    return number.to_bytes(11, "big") + bytes([kind])
