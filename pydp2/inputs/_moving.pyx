# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled form of :mod:`pydp2.inputs.moving`, which says what these functions do."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t
from libc.string cimport memcpy, memmove


def gather(source, const int64_t[::1] starts, const int64_t[::1] counts, Py_ssize_t size, out):
    cdef Py_buffer theirs, mine
    cdef Py_ssize_t i, at = 0, length, rows = starts.shape[0], there, room
    if counts.shape[0] != rows or size < 1:
        raise ValueError("as many counts as starts are needed, of entries that have a size")
    PyObject_GetBuffer(source, &theirs, PyBUF_SIMPLE)
    try:
        there = theirs.len // size
        PyObject_GetBuffer(out, &mine, PyBUF_WRITABLE)
        try:
            for i in range(rows):
                if counts[i] == 0:  # where nothing begins does not matter
                    continue
                room = (mine.len - at) // size
                if not (0 <= starts[i] <= there and 0 <= counts[i] <= min(there - starts[i], room)):
                    raise IndexError("a stretch lies outside of its array, or of the place for it")
                length = counts[i] * size
                memcpy(<char*>mine.buf + at, <char*>theirs.buf + starts[i] * size, length)
                at += length
            if at != mine.len:
                raise IndexError("the stretches do not fill what they are gathered in")
        finally:
            PyBuffer_Release(&mine)
    finally:
        PyBuffer_Release(&theirs)


def close_up(array, const int64_t[::1] starts, const int64_t[::1] counts, Py_ssize_t size):
    cdef Py_buffer mine
    cdef Py_ssize_t i, at = 0, end = 0, rows = starts.shape[0], there
    if counts.shape[0] != rows or size < 1:
        raise ValueError("as many counts as starts are needed, of entries that have a size")
    PyObject_GetBuffer(array, &mine, PyBUF_WRITABLE)
    try:
        there = mine.len // size
        for i in range(rows):
            if not (end <= starts[i] <= there and 0 <= counts[i] <= there - starts[i]):
                raise IndexError("stretches must rise and lie in their array")
            end = starts[i] + counts[i]
            memmove(<char*>mine.buf + at * size, <char*>mine.buf + starts[i] * size, counts[i] * size)
            at += counts[i]
    finally:
        PyBuffer_Release(&mine)
