"""An SFTP server (version 3) on stdin and stdout: the side of a job, with the standard library of its Python alone.

`weft ssh-proxy` sends this file's text into the job, so it imports nothing of Weft and needs no more than Python 3.8.
Protocol: draft-ietf-secsh-filexfer-02, with the extensions of OpenSSH that its clients use.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable
from typing import BinaryIO

PACKET_BYTES_MAX = 256 << 10  # as OpenSSH's server has it
READ_BYTES_MAX = PACKET_BYTES_MAX - 1024
NAMES_AT_ONCE = 100
HANDLES_MAX = 1000
VERSION = 3
INIT, VERSION_ANSWER = 1, 2
OPEN, CLOSE, READ, WRITE, LSTAT, FSTAT, SETSTAT, FSETSTAT, OPENDIR, READDIR = range(3, 13)
REMOVE, MKDIR, RMDIR, REALPATH, STAT, RENAME, READLINK, SYMLINK = range(13, 21)
STATUS, HANDLE, DATA, NAME, ATTRS = 101, 102, 103, 104, 105
EXTENDED = 200
OK, END, NO_SUCH_FILE, DENIED, FAILURE, BAD_MESSAGE, UNSUPPORTED = 0, 1, 2, 3, 4, 5, 8
HAS_SIZE, HAS_OWNER, HAS_MODE, HAS_TIMES, HAS_EXTENDED = 1, 2, 4, 8, 0x80000000
TO_READ, TO_WRITE, TO_APPEND, TO_CREATE, TO_TRUNCATE, TO_EXCLUDE = 1, 2, 4, 8, 16, 32
EXTENSIONS = ((b"posix-rename@openssh.com", b"1"), (b"hardlink@openssh.com", b"1"), (b"fsync@openssh.com", b"1"))


class Refusal(Exception):  # noqa: N818
    """A status in place of an answer."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class Packet:
    """Reads the fields of one request. Raises Refusal where one is missing."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def long(self) -> int:
        return int.from_bytes(self._take(8), "big")

    def text(self) -> bytes:
        return self._take(self.number())

    def path(self) -> bytes:
        path = self.text()
        if b"\0" in path:
            raise Refusal(BAD_MESSAGE, "a path has a byte 0")
        return path or b"."

    def attributes(self) -> dict[str, tuple[int, int]]:
        """The attributes that are there: `size` and `mode` with a zero beside them, `owner`, `times`."""
        flags, found = self.number(), {}
        if flags & HAS_SIZE:
            found["size"] = (self.long(), 0)
        if flags & HAS_OWNER:
            found["owner"] = (self.number(), self.number())
        if flags & HAS_MODE:
            found["mode"] = (self.number(), 0)
        if flags & HAS_TIMES:
            found["times"] = (self.number(), self.number())
        if flags & HAS_EXTENDED:
            for _ in range(self.number()):
                self.text()
                self.text()
        return found

    def _take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) != count:
            raise Refusal(BAD_MESSAGE, "the request is cut off")
        self._at += count
        return piece


class Server:
    def __init__(self) -> None:
        self._files: dict[bytes, int] = {}
        self._folders: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self._made = 0
        self._answers: dict[int, Callable[[Packet], bytes]] = {
            OPEN: self._open,
            CLOSE: self._close,
            READ: self._read,
            WRITE: self._write,
            LSTAT: lambda packet: attributes_answer(os.lstat(packet.path())),
            STAT: lambda packet: attributes_answer(os.stat(packet.path())),
            FSTAT: lambda packet: attributes_answer(os.fstat(self._file(packet))),
            SETSTAT: lambda packet: change(packet.path(), packet.attributes()),
            FSETSTAT: lambda packet: change(self._file(packet), packet.attributes()),
            OPENDIR: self._open_folder,
            READDIR: self._read_folder,
            REMOVE: lambda packet: done(os.unlink, packet.path()),
            MKDIR: self._make_folder,
            RMDIR: lambda packet: done(os.rmdir, packet.path()),
            REALPATH: lambda packet: names_answer([(os.path.realpath(packet.path()), b"", b"\0\0\0\0")]),
            RENAME: self._rename,
            READLINK: lambda packet: names_answer([(os.readlink(packet.path()), b"", b"\0\0\0\0")]),
            SYMLINK: lambda packet: done(os.symlink, packet.path(), packet.path()),  # in OpenSSH's order
            EXTENDED: self._extended,
        }

    def answer(self, kind: int, packet: Packet) -> bytes:
        """The answer to a request, from its kind on, without its number."""
        try:
            if kind not in self._answers:
                raise Refusal(UNSUPPORTED, "this request is not supported")
            return self._answers[kind](packet)
        except Refusal as refusal:
            return status(refusal.code, str(refusal))
        except OSError as error:
            codes = {errno.ENOENT: NO_SUCH_FILE, errno.ENOTDIR: NO_SUCH_FILE, errno.EACCES: DENIED, errno.EPERM: DENIED}
            return status(codes.get(error.errno or 0, FAILURE), os.strerror(error.errno or errno.EIO))
        except (ValueError, OverflowError) as error:
            return status(FAILURE, str(error))

    def _handle(self) -> bytes:
        if len(self._files) + len(self._folders) >= HANDLES_MAX:
            raise Refusal(FAILURE, "too many open files")
        self._made += 1
        return b"%d" % self._made

    def _file(self, packet: Packet) -> int:
        found = self._files.get(packet.text())
        if found is None:
            raise Refusal(FAILURE, "no such handle")
        return found

    def _open(self, packet: Packet) -> bytes:
        path, wanted, attributes = packet.path(), packet.number(), packet.attributes()
        flags = os.O_CLOEXEC
        flags |= os.O_RDWR if wanted & TO_READ and wanted & TO_WRITE else os.O_WRONLY if wanted & TO_WRITE else 0
        for bit, flag in ((TO_CREATE, os.O_CREAT), (TO_TRUNCATE, os.O_TRUNC), (TO_EXCLUDE, os.O_EXCL)):
            flags |= flag if wanted & bit else 0
        flags |= os.O_APPEND if wanted & TO_APPEND else 0
        handle = self._handle()
        self._files[handle] = os.open(path, flags, attributes.get("mode", (0o666, 0))[0] & 0o7777)
        return bytes((HANDLE,)) + text(handle)

    def _close(self, packet: Packet) -> bytes:
        handle = packet.text()
        if handle in self._files:
            os.close(self._files.pop(handle))
        elif self._folders.pop(handle, None) is None:
            raise Refusal(FAILURE, "no such handle")
        return status(OK)

    def _read(self, packet: Packet) -> bytes:
        file, offset, count = self._file(packet), packet.long(), packet.number()
        data = os.pread(file, min(count, READ_BYTES_MAX), offset)
        return bytes((DATA,)) + text(data) if data else status(END, "end of file")

    def _write(self, packet: Packet) -> bytes:
        file, offset, left = self._file(packet), packet.long(), memoryview(packet.text())
        while left:
            count = os.pwrite(file, left, offset)
            left, offset = left[count:], offset + count
        return status(OK)

    def _open_folder(self, packet: Packet) -> bytes:
        path, handle = packet.path(), self._handle()
        self._folders[handle] = [(name, path) for name in (b".", b"..", *sorted(os.listdir(path)))]
        return bytes((HANDLE,)) + text(handle)

    def _read_folder(self, packet: Packet) -> bytes:
        left = self._folders.get(packet.text())
        if left is None:
            raise Refusal(FAILURE, "no such handle")
        if not left:
            return status(END, "no more names")
        entries, left[:NAMES_AT_ONCE] = left[:NAMES_AT_ONCE], []
        found = []
        for name, folder in entries:
            try:
                seen = os.lstat(os.path.join(folder, name))
            except OSError:  # it has gone since
                continue
            found.append((name, long_name(name, seen), packed(seen)))
        return names_answer(found)

    def _make_folder(self, packet: Packet) -> bytes:
        path, attributes = packet.path(), packet.attributes()
        return done(os.mkdir, path, attributes.get("mode", (0o777, 0))[0] & 0o7777)

    def _rename(self, packet: Packet) -> bytes:
        before, after = packet.path(), packet.path()
        if os.path.lexists(after):
            raise Refusal(FAILURE, "the new name is taken")
        return done(os.rename, before, after)

    def _extended(self, packet: Packet) -> bytes:
        name = packet.text()
        if name == b"posix-rename@openssh.com":
            return done(os.replace, packet.path(), packet.path())
        if name == b"hardlink@openssh.com":
            return done(os.link, packet.path(), packet.path(), follow_symlinks=False)
        if name == b"fsync@openssh.com":
            return done(os.fsync, self._file(packet))
        raise Refusal(UNSUPPORTED, "this extension is not supported")


def done(act: Callable[..., None], *arguments: object, **options: object) -> bytes:
    act(*arguments, **options)
    return status(OK)


def status(code: int, words: str = "") -> bytes:
    return bytes((STATUS,)) + code.to_bytes(4, "big") + text(words.encode(errors="replace")) + text(b"en")


def text(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def packed(seen: os.stat_result) -> bytes:
    """The attributes of a file as the protocol has them; its times are of 32 bits."""
    times = (int(value) & 0xFFFFFFFF for value in (seen.st_atime, seen.st_mtime))
    flags = HAS_SIZE | HAS_OWNER | HAS_MODE | HAS_TIMES
    return struct.pack(">IQIIIII", flags, seen.st_size, seen.st_uid, seen.st_gid, seen.st_mode, *times)


def attributes_answer(seen: os.stat_result) -> bytes:
    return bytes((ATTRS,)) + packed(seen)


def names_answer(found: list[tuple[bytes, bytes, bytes]]) -> bytes:
    """The answer with names, each with a line as `ls -l` has it and its attributes."""
    head = bytes((NAME,)) + len(found).to_bytes(4, "big")
    return head + b"".join(text(name) + text(line or name) + attributes for name, line, attributes in found)


def long_name(name: bytes, seen: os.stat_result) -> bytes:
    when = time.strftime("%b %e %H:%M", time.localtime(seen.st_mtime))
    facts = f"{seen.st_nlink:3} {seen.st_uid:<8} {seen.st_gid:<8} {seen.st_size:8} {when} "
    return f"{stat.filemode(seen.st_mode)} {facts}".encode() + name


def change(what: int | bytes, attributes: dict[str, tuple[int, int]]) -> bytes:
    """Set the attributes that are given of an open file or a path."""
    if "size" in attributes:
        os.truncate(what, attributes["size"][0])
    if "mode" in attributes:
        os.chmod(what, attributes["mode"][0] & 0o7777)
    if "times" in attributes:
        os.utime(what, attributes["times"])
    if "owner" in attributes:
        os.chown(what, *attributes["owner"])
    return status(OK)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    server = Server()
    while True:
        head = requests.read(5)
        if len(head) < 5:
            return
        size, kind = int.from_bytes(head[:4], "big") - 1, head[4]
        if not 4 <= size <= PACKET_BYTES_MAX:
            return
        body = requests.read(size)
        if len(body) < size:
            return
        if kind == INIT:
            extensions = b"".join(text(name) + text(version) for name, version in EXTENSIONS)
            answer = bytes((VERSION_ANSWER,)) + VERSION.to_bytes(4, "big") + extensions
        else:
            said = server.answer(kind, Packet(body[4:]))
            answer = said[:1] + body[:4] + said[1:]
        answers.write(text(answer))
        answers.flush()


if __name__ == "__main__":
    os.umask(0o022)
    serve(sys.stdin.buffer, sys.stdout.buffer)
