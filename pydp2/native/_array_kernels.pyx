# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Gather rows and encode sets in compiled form: :mod:`pydp2.rowstore.gather`, :mod:`pydp2.columns.sample_set`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint64_t
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
                if counts[i] == 0:  # the start of an empty stretch does not matter
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


def take(source, const int64_t[::1] where, Py_ssize_t size, out):
    cdef Py_buffer theirs, mine
    cdef Py_ssize_t i, at, rows = where.shape[0], there
    cdef char* to
    cdef const char* of
    PyObject_GetBuffer(source, &theirs, PyBUF_SIMPLE)
    try:
        there = theirs.len // size
        PyObject_GetBuffer(out, &mine, PyBUF_WRITABLE)
        try:
            if mine.len != rows * size:
                raise IndexError("what is gathered does not fill the place for it")
            to, of = <char*>mine.buf, <const char*>theirs.buf
            for i in range(rows):
                at = where[i]
                if not 0 <= at < there:
                    raise IndexError("an entry lies outside of its array")
                if size == 4:  # a copy of a known size calls no function
                    memcpy(to + i * 4, of + at * 4, 4)
                elif size == 8:
                    memcpy(to + i * 8, of + at * 8, 8)
                else:
                    memcpy(to + i * size, of + at * size, size)
        finally:
            PyBuffer_Release(&mine)
    finally:
        PyBuffer_Release(&theirs)


def compact(array, const int64_t[::1] starts, const int64_t[::1] counts, Py_ssize_t size):
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


cdef inline Py_ssize_t _varint(uint8_t* out, uint64_t value) noexcept nogil:
    cdef Py_ssize_t size = 0
    while value >= 128:
        out[size] = <uint8_t>(value | 128)
        value >>= 7
        size += 1
    out[size] = <uint8_t>value
    return size + 1


def encode_set(const int64_t[::1] files, const int64_t[::1] sample_indices, uint8_t[::1] out):
    cdef Py_ssize_t i, begin, count = files.shape[0], starts = 0, heads = 0, size
    cdef bint first, runs
    cdef int64_t before
    cdef uint8_t* at
    if sample_indices.shape[0] != count or out.shape[0] < 10 * (1 + 3 * count):
        raise ValueError("as many sample_indices as files are needed, and room for them")
    if not count:
        return 0, False
    for i in range(count):
        first = i == 0 or files[i] != files[i - 1]
        starts += first
        heads += first or sample_indices[i] != sample_indices[i - 1] + 1
    runs = 2 * heads < count
    at = &out[0]
    size = _varint(at, starts)
    before = -1
    for i in range(count):
        if i == 0 or files[i] != files[i - 1]:
            size += _varint(at + size, files[i] - before - 1)
            before = files[i]
    begin = 0  # the number of samples or runs of each file
    for i in range(count):
        if i and files[i] != files[i - 1]:
            size += _varint(at + size, begin)
            begin = 0
        begin += not runs or i == 0 or files[i] != files[i - 1] or sample_indices[i] != sample_indices[i - 1] + 1
    size += _varint(at + size, begin)
    for i in range(count):
        if i == 0 or files[i] != files[i - 1]:
            size += _varint(at + size, sample_indices[i])
        elif not runs or sample_indices[i] != sample_indices[i - 1] + 1:
            size += _varint(at + size, sample_indices[i] - sample_indices[i - 1] - 1)
    if runs:
        begin = 0
        for i in range(1, count):
            if files[i] != files[i - 1] or sample_indices[i] != sample_indices[i - 1] + 1:
                size += _varint(at + size, i - begin - 1)
                begin = i
        size += _varint(at + size, count - begin - 1)
    return size, runs
