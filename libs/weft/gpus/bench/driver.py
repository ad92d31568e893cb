"""NVIDIA's driver API (libcuda) as the benchmark uses it, through ctypes: every call is checked, every error names the
call. The process needs no toolkit and no framework, only the driver, which is installed anyway.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from uuid import UUID

LIBRARY = "libcuda.so.1"

_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES = 5, 6  # CUjit_option
_JIT_LOG_BYTES = 4096
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute

# The types of each function's arguments; all functions return a CUresult.
_FUNCTIONS: dict[str, tuple[type, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetUuid": (c_void_p, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuModuleLoadDataEx": (POINTER(c_void_p), c_char_p, c_uint, c_void_p, c_void_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemsetD32_v2": (c_uint64, c_uint, c_size_t),
    "cuMemAllocHost_v2": (POINTER(c_void_p), c_size_t),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyPeerAsync": (c_uint64, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p),
    "cuDeviceCanAccessPeer": (POINTER(c_int), c_int, c_int),
    "cuCtxEnablePeerAccess": (c_void_p, c_uint),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
}

Argument = c_uint64 | c_float | c_uint
Kernel = c_void_p


class CudaError(Exception):
    """A call to the driver failed. The message has the call and the driver's answer."""


class NotMeasuredError(CudaError):
    """Nothing was found out about the GPU."""


class Device:
    """A GPU that this process sees, with its primary context; opened by `devices`. Calls reach the GPU that was made
    current last, with `use`."""

    def __init__(self, library: "_Library", number: int, context: c_void_p) -> None:
        self._library = library
        self._number = number
        self._context = context
        self.use()
        self._began, self._ended = self._event(), self._event()
        self.name = self._name()
        self.uuid = self._uuid()

    @property
    def capability(self) -> str:
        """The compute capability, such as `9.0`."""
        major, minor = (self._attribute(which) for which in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR))
        return f"{major}.{minor}"

    def use(self) -> None:
        self._library.call("cuCtxSetCurrent", self._context)

    def free_bytes(self) -> int:
        free, total = c_size_t(), c_size_t()
        self._library.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def kernel(self, text: bytes, entry: str) -> Kernel:
        """Compile a kernel with the driver. `text` is PTX, ended by a zero; an error has the compiler's message."""
        log = ctypes.create_string_buffer(_JIT_LOG_BYTES)
        options = (c_int * 2)(_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), _JIT_LOG_BYTES)
        module, function = c_void_p(), c_void_p()
        try:
            self._library.call("cuModuleLoadDataEx", byref(module), text, 2, options, values)
        except CudaError as error:
            said = " ".join(log.value.decode(errors="replace").split())
            raise CudaError(f"{error}{f': {said}' if said else ''}") from None
        self._library.call("cuModuleGetFunction", byref(function), module, entry.encode())
        return function

    def allocate(self, size: int) -> c_uint64:
        """Allocate `size` bytes of the GPU's memory. The driver frees it when this process ends."""
        address = c_uint64()
        self._library.call("cuMemAlloc_v2", byref(address), size)
        return address

    def fill(self, address: c_uint64, value: float, size: int) -> None:
        """Fill `size` bytes with the float32 `value`, again and again."""
        bits = c_uint.from_buffer_copy(c_float(value)).value
        self._library.call("cuMemsetD32_v2", address, bits, size // 4)
        self._library.call("cuCtxSynchronize")

    def host_memory(self, size: int) -> c_void_p:
        """Allocate `size` bytes of the host's memory that the GPU reads without a copy in between."""
        address = c_void_p()
        self._library.call("cuMemAllocHost_v2", byref(address), size)
        return address

    def copy_in(self, to: c_uint64, source: c_void_p, size: int) -> None:
        self._library.call("cuMemcpyHtoD_v2", to, source, size)

    def copy_out(self, to: c_void_p, source: c_uint64, size: int) -> None:
        self._library.call("cuMemcpyDtoH_v2", to, source, size)

    def reach(self, peer: "Device") -> None:
        """Let copies to the other GPU go there directly, where the machine can do that."""
        able = c_int()
        self._library.call("cuDeviceCanAccessPeer", byref(able), self._number, peer._number)
        if able.value:
            self.use()
            self._library.call("cuCtxEnablePeerAccess", peer._context, 0)

    def send(self, peer: "Device", to: c_uint64, source: c_uint64, size: int) -> None:
        """Begin a copy to memory of the other GPU; `wait` for it."""
        self.use()
        self._library.call("cuMemcpyPeerAsync", to, peer._context, source, self._context, size, None)

    def launch(self, kernel: Kernel, *, blocks: int, threads: int, arguments: Sequence[Argument]) -> None:
        """Begin a kernel; `wait` for it."""
        self.use()
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        self._library.call("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)

    def wait(self) -> None:
        """Wait until the GPU has done everything that was begun there."""
        self.use()
        self._library.call("cuCtxSynchronize")

    def read(self, address: c_uint64, number: int) -> float:
        """The float32 at index `number`, counted from `address`."""
        value = c_float()
        self._library.call("cuMemcpyDtoH_v2", byref(value), c_uint64(address.value + 4 * number), 4)
        return value.value

    def seconds(
        self, kernel: Kernel, *, blocks: int, threads: int, launches: int, arguments: Sequence[Argument]
    ) -> float:
        """The seconds that the launches, one after the other, take by the GPU's own clock."""
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        self._library.call("cuEventRecord", self._began, None)
        for _ in range(launches):
            self._library.call("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)
        self._library.call("cuEventRecord", self._ended, None)
        self._library.call("cuEventSynchronize", self._ended)
        milliseconds = c_float()
        self._library.call("cuEventElapsedTime", byref(milliseconds), self._began, self._ended)
        return milliseconds.value / 1000

    def close(self) -> None:
        self.use()
        for event in (self._began, self._ended):
            self._library.call("cuEventDestroy_v2", event)

    def _event(self) -> c_void_p:
        event = c_void_p()
        self._library.call("cuEventCreate", byref(event), 0)
        return event

    def _name(self) -> str:
        name = ctypes.create_string_buffer(256)
        self._library.call("cuDeviceGetName", name, len(name), self._number)
        return name.value.decode(errors="replace")

    def _uuid(self) -> str:
        raw = ctypes.create_string_buffer(16)
        self._library.call("cuDeviceGetUuid", raw, self._number)
        return f"GPU-{UUID(bytes=raw.raw)}"

    def _attribute(self, which: int) -> int:
        value = c_int()
        self._library.call("cuDeviceGetAttribute", byref(value), which, self._number)
        return value.value


@contextmanager
def devices(*, visible: str, count_max: int) -> Iterator[list[Device]]:
    """The first GPUs that the driver shows this process, `count_max` at most. `visible` is CUDA_VISIBLE_DEVICES. Raises
    CudaError."""
    library = _Library()
    library.call("cuInit", 0)
    count = c_int()
    library.call("cuDeviceGetCount", byref(count))
    if count.value < 1:
        raise NotMeasuredError(f"the driver shows no GPU here (CUDA_VISIBLE_DEVICES={visible})")
    with ExitStack() as opened:
        found = [opened.enter_context(_device(library, ordinal)) for ordinal in range(min(count.value, count_max))]
        _check_meant(found[0], visible)
        yield found


@contextmanager
def _device(library: "_Library", ordinal: int) -> Iterator[Device]:
    number, context = c_int(), c_void_p()
    library.call("cuDeviceGet", byref(number), ordinal)
    library.call("cuDevicePrimaryCtxRetain", byref(context), number.value)
    try:
        found = Device(library, number.value, context)
        yield found
        found.close()
    finally:
        library.call("cuDevicePrimaryCtxRelease_v2", number.value)


def _check_meant(found: Device, visible: str) -> None:
    """Check the uuid: under a driver that ignores the variable, another GPU must not be measured."""
    first = visible.partition(",")[0].strip()
    if first.startswith("GPU-") and not found.uuid.lower().startswith(first.lower()):
        raise NotMeasuredError(f"CUDA_VISIBLE_DEVICES names {first}, and the driver shows {found.uuid}")


class _Library:
    """The library's functions. Raises CudaError if the driver is missing, lacks a function, or answers an error."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NotMeasuredError(f"no NVIDIA driver here: {error}") from error
        for name, arguments in _FUNCTIONS.items():
            try:
                function = getattr(self._library, name)
            except AttributeError:
                raise NotMeasuredError(f"this driver is too old: it has no {name}") from None
            function.argtypes = arguments
            function.restype = c_int

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CudaError(f"{name}: {self._words(status)}")

    def _words(self, status: int) -> str:
        """The status in words: `CUDA_ERROR_OUT_OF_MEMORY (2): out of memory`."""
        said = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            ask = getattr(self._library, name, None)
            if ask is not None and ask(c_int(status), byref(text)) == 0 and text.value:
                said.append(text.value.decode(errors="replace"))
        name, words = (*said, "", "")[:2]
        return f"{name or 'error'} ({status}){f': {words}' if words else ''}"
