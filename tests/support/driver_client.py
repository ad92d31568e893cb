"""A program over the CUDA driver API, through ctypes: what the tests of sharing run, on the emulated driver."""

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

SUCCESS, OUT_OF_MEMORY, NOT_FOUND, NOT_READY = 0, 2, 500, 600
PER_THREAD = 2  # flag of cuGetProcAddress
DEVICE_LOCATION = 1


class Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("windows", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


class ArrayDescriptor(ctypes.Structure):
    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


class Array3dDescriptor(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    )


class PoolProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", Location),
        ("windows", c_void_p),
        ("most", c_size_t),
        ("rest", ctypes.c_ubyte * 56),
    )


class GraphMemory(ctypes.Structure):
    _fields_ = (
        ("pool", PoolProperties),
        ("access", c_void_p),
        ("count", c_size_t),
        ("size", c_size_t),
        ("at", c_uint64),
    )


class CallError(Exception):
    """A call answered a status other than success."""


class Driver:
    """The driver with one context on a device. Device times are in µs, sizes in bytes."""

    def __init__(self, device: int = 0) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", c_uint(0))
        self.context = c_void_p()
        self.check("cuDevicePrimaryCtxRetain", byref(self.context), c_int(device))
        self.check("cuCtxSetCurrent", self.context)
        self.spin = self.function("microseconds")

    def call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, name)(*arguments))

    def check(self, name: str, *arguments: Any) -> None:
        if status := self.call(name, *arguments):
            raise CallError(f"{name}: {status}")

    def function(self, name: str) -> c_void_p:
        module, function = c_void_p(), c_void_p()
        self.check("cuModuleLoadData", byref(module), b"any")
        self.check("cuModuleGetFunction", byref(function), module, name.encode())
        return function

    def stream(self) -> c_void_p:
        stream = c_void_p()
        self.check("cuStreamCreate", byref(stream), c_uint(0))
        return stream

    def launch(self, microseconds: int, stream: c_void_p | None = None, name: str = "cuLaunchKernel") -> None:
        """Launch a kernel that takes so long. It has this as its grid, too: other lengths are other kernels."""
        number = c_uint(microseconds)
        parameters = (c_void_p * 1)(ctypes.addressof(number))
        if name.startswith("cuLaunchKernelEx"):
            config = LaunchConfig(
                (c_uint * 3)(max(microseconds, 1), 1, 1), (c_uint * 3)(1, 1, 1), 0, stream.value if stream else None
            )
            self.check(name, byref(config), self.spin, parameters, None)
            return
        grid = (c_uint(max(microseconds, 1)), *(c_uint(1),) * 5)
        extra = () if "Cooperative" in name else (None,)
        self.check(name, self.spin, *grid, c_uint(0), stream, parameters, *extra)

    def synchronize(self) -> None:
        self.check("cuCtxSynchronize")

    def event(self, stream: c_void_p | None = None) -> c_void_p:
        event = c_void_p()
        self.check("cuEventCreate", byref(event), c_uint(0))
        self.check("cuEventRecord", event, stream)
        return event

    def elapsed_ms(self, begin: c_void_p, end: c_void_p) -> float:
        milliseconds = c_float()
        self.check("cuEventElapsedTime", byref(milliseconds), begin, end)
        return milliseconds.value

    def graph(self, kernels: int, microseconds: int) -> c_void_p:
        """A graph of such kernels, captured from a stream."""
        stream, graph, executable = self.stream(), c_void_p(), c_void_p()
        self.check("cuStreamBeginCapture_v2", stream, c_int(0))
        for _ in range(kernels):
            self.launch(microseconds, stream)
        self.check("cuStreamEndCapture", stream, byref(graph))
        self.check("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
        return executable

    def memory(self) -> tuple[int, int]:
        """Bytes free, bytes in total."""
        free, total = c_size_t(), c_size_t()
        self.check("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def allocate(self, size: int, name: str = "cuMemAlloc_v2") -> c_uint64 | None:
        """Memory by any of the calls that give it; None if it is refused as out of memory."""
        at = c_uint64()
        match name:
            case "cuMemAlloc_v2":
                arguments: tuple[Any, ...] = (byref(at), c_size_t(size))
            case "cuMemAllocManaged":
                arguments = (byref(at), c_size_t(size), c_uint(1))
            case "cuMemAllocPitch_v2":
                arguments = (byref(at), byref(c_size_t()), c_size_t(512), c_size_t(size // 512), c_uint(4))
            case "cuMemAllocAsync" | "cuMemAllocAsync_ptsz":
                arguments = (byref(at), c_size_t(size), None)
            case "cuMemAllocFromPoolAsync" | "cuMemAllocFromPoolAsync_ptsz":
                pool = c_void_p()
                self.check("cuDeviceGetDefaultMemPool", byref(pool), c_int(0))
                arguments = (byref(at), c_size_t(size), pool, None)
            case "cuMemCreate":
                wanted = AllocationProperties(type=1, location=Location(DEVICE_LOCATION, 0))
                arguments = (byref(at), c_size_t(size), byref(wanted), c_uint64(0))
            case "cuArrayCreate_v2":
                arguments = (byref(at), byref(ArrayDescriptor(size // 4096, 1024, 0x20, 1)))
            case "cuArray3DCreate_v2":
                arguments = (byref(at), byref(Array3dDescriptor(size // 4096, 32, 32, 0x20, 1, 0)))
            case "cuMipmappedArrayCreate":
                arguments = (byref(at), byref(Array3dDescriptor(size // 4096, 32, 32, 0x20, 1, 0)), c_uint(1))
            case _:
                raise ValueError(name)
        status = self.call(name, *arguments)
        if status not in (SUCCESS, OUT_OF_MEMORY):
            raise CallError(f"{name}: {status}")
        return at if status == SUCCESS else None

    def free(self, at: c_uint64, name: str = "cuMemAlloc_v2") -> None:
        """Free what the call `name` gave."""
        if name == "cuMemCreate":
            self.check("cuMemRelease", at)
        elif name.startswith("cuMipmapped"):
            self.check("cuMipmappedArrayDestroy", at)
        elif name.startswith("cuArray"):
            self.check("cuArrayDestroy", at)
        elif "Async" in name:
            self.check("cuMemFreeAsync", at, None)
        else:
            self.check("cuMemFree_v2", at)

    def address(self, name: str, version: int, flags: int = 0, *, older: bool = False) -> tuple[int, int | None]:
        """Ask cuGetProcAddress (of before 12.0: `older`): the status, the address."""
        found, status = c_void_p(), c_int()
        text = c_char_p(name.encode())
        arguments = (text, byref(found), c_int(version), c_uint64(flags))
        if older:
            return self.call("cuGetProcAddress", *arguments), found.value
        return self.call("cuGetProcAddress_v2", *arguments, byref(status)), found.value
