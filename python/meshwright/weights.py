# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Safetensors files: mapped into memory, so that weights are read when they are sharded.

A file is a length (8 bytes, little endian), that many bytes of JSON, and data:
{"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}.
"""

import contextlib
import errno
import json
import math
import os
import tempfile

import numpy as np

from .errors import Error
from .tensors import ELEMENT_TYPES, NUMPY_TYPES, Joined, elements_per_byte, slabs_of

#: Not a tensor's: what a file says of itself.
_METADATA = "__metadata__"
_TYPES = {element.stored: NUMPY_TYPES[name] for name, element in ELEMENT_TYPES.items()}
_SHARED = {element.stored: elements_per_byte(name) for name, element in ELEMENT_TYPES.items()}
#: Types of stored weights that no program has. Such weights are read, and refused if a program
#: wants one.
_TYPES |= {
    "U8": np.dtype(np.uint8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "U64": np.dtype(np.uint64),
}


def load(path) -> dict[str, np.ndarray]:
    """The file's tensors, by name: views of the mapped file."""

    def fail(what):
        raise Error(f"cannot read weights '{path}': {what}")

    try:
        size = os.path.getsize(path)
        if size < 8:
            fail(f"expected a header of at least 8 bytes, got {size}")
        data = np.memmap(path, dtype=np.uint8, mode="c")
    except OSError as error:
        fail(error.strerror or error)
    length = int.from_bytes(bytes(data[:8]), "little")
    if length > size - 8:
        fail(f"its header: expected {length} bytes behind their number, got {size - 8}: truncated?")
    try:
        header = json.loads(bytes(data[8 : 8 + length]).decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        fail("its header is not JSON")
    if not isinstance(header, dict):
        fail("its header is not a table")
    header.pop(_METADATA, None)
    tensors = {}
    for name, entry in header.items():
        try:
            dtype, shape = entry["dtype"], entry["shape"]
            begin, end = entry["data_offsets"]
            if not all(type(number) is int for number in (begin, end, *shape)):
                raise TypeError
            count = math.prod(shape)
        except (KeyError, TypeError, ValueError):
            fail(f"the header's entry '{name}' is malformed")
        if dtype not in _TYPES:
            continue
        if (shared := _SHARED.get(dtype, 1)) > 1:
            if not shape or shape[-1] % shared:
                fail(f"'{name}': expected an even last dimension, got {dtype}{shape}")
            shape = [*shape[:-1], shape[-1] // shared]
            count = math.prod(shape)
        if begin < 0 or end - begin != count * _TYPES[dtype].itemsize or min(shape, default=0) < 0:
            fail(f"'{name}': expected the bytes of {dtype}{shape}, got {end - begin}")
        if end > size - 8 - length:
            fail(f"'{name}' ends behind the end of the file: truncated?")
        part = data[8 + length + begin : 8 + length + end]
        if part.ctypes.data % _TYPES[dtype].itemsize:
            part = part.copy()
        tensors[name] = part.view(_TYPES[dtype]).reshape(shape)
    return tensors


def check_whole(array) -> None:
    """Raises Error where the file of one that `load` gave was cut: reading it ends the process."""
    for part in array.mapped if isinstance(array, Joined) else [array]:
        mapped = getattr(part, "_mmap", None)
        if mapped is not None and mapped.size() < len(mapped):
            raise Error(
                f"cannot read weights '{part.filename}': cut to {mapped.size()} bytes since they "
                f"were loaded, of {len(mapped)}"
            )


def _stored_shape(tensor):
    shape = list(tensor.shape)
    if shape:
        shape[-1] *= elements_per_byte(tensor.dtype)
    return shape


def write(file, tensors, step=lambda: None) -> None:
    """Writes `tensors` (name -> Dense) to a binary file, and calls `step` behind each."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        if name == _METADATA:
            raise Error(f"cannot save '{name}': safetensors files keep other things by that name")
        if tensor.dtype not in ELEMENT_TYPES:
            raise Error(f"cannot save '{name}': safetensors files have no {tensor.dtype} here")
        size = math.prod(tensor.shape) * NUMPY_TYPES[tensor.dtype].itemsize
        header[name] = {
            "dtype": ELEMENT_TYPES[tensor.dtype].stored,
            "shape": _stored_shape(tensor),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # so that the data is aligned

    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for tensor in tensors.values():
        for part in slabs_of(tensor):
            file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        step()


def _sync_folder(directory):
    """Makes the names in a folder permanent, where its file system can."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(folder)


@contextlib.contextmanager
def whole_file(path):
    """A binary file that takes `path`'s place once the block has ended, not if it fails.

    A link is followed; what is no file, such as a pipe, is written to as it stands.
    """
    temporary = None
    try:
        real = os.path.realpath(path)
        if os.path.exists(real) and not os.path.isfile(real):
            with open(real, "wb") as file:
                yield file
            return
        directory, name = os.path.split(real)
        descriptor, temporary = tempfile.mkstemp(prefix=name + ".", dir=directory)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            # A file that is there goes only when the new one is on the disk.
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        # From here on the new file may have the name: nothing deletes it.
        ready, temporary = temporary, None
        try:
            os.replace(ready, real)
        except OSError:
            os.unlink(ready)
            raise
        _sync_folder(directory)
    except OSError as error:
        raise Error(f"cannot write '{path}': {error.strerror or error}") from error
    finally:
        if temporary is not None:
            os.unlink(temporary)
