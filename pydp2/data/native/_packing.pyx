# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Pack values in compiled form: take what is certainly right and nothing else, value by value.

The form in Python is :mod:`pydp2.data.packers.slot_writers`.

Everything is checked while it is taken: types, widths, ranges, overflow, duplicates. A value that is not certainly
right goes to the slot writer in Python (``python_writer``), whose verdicts hold: here nothing is ever found to be bad.
So both forms give the same columns and the same messages, and this one has no words of its own.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_Size
from cpython.list cimport PyList_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_RawFree, PyMem_RawRealloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_CheckExact, PyUnicode_GET_LENGTH
from libc.math cimport isinf
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

import numpy as np


cdef extern from "Python.h":
    PyObject* PyDict_GetItemWithError(object, object) except? NULL
    double PyLong_AsDouble(object) except? -1.0
    object PyNumber_Index(object)
    PyObject** PySequence_Fast_ITEMS(object)
    Py_ssize_t PySequence_Fast_GET_SIZE(object)
    # for borrowed references, so that no reference count changes
    bint is_float "PyFloat_CheckExact"(PyObject*)
    double as_double "PyFloat_AS_DOUBLE"(PyObject*)
    bint is_int "PyLong_CheckExact"(PyObject*)
    bint is_bool "PyBool_Check"(PyObject*)
    bint is_ascii "PyUnicode_IS_COMPACT_ASCII"(object)
    const char* ascii_data "PyUnicode_DATA"(object)

cdef extern from *:
    """
    /* Of numbers of one digit, which nearly all are, the call would cost more than the look. */
    static inline long long pydp2_as_int(PyObject* number, int* overflow) {
    #if PY_VERSION_HEX >= 0x030C0000
        if (PyUnstable_Long_IsCompact((PyLongObject*)number)) {
            return PyUnstable_Long_CompactValue((PyLongObject*)number);
        }
    #elif defined(Py_LONGINTREPR_H)
        if (Py_SIZE(number) == 1) return ((PyLongObject*)number)->ob_digit[0];
    #endif
        return PyLong_AsLongLongAndOverflow(number, overflow);
    }
    """
    long long as_int "pydp2_as_int"(PyObject*, int*) except? -1

cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*)
    enum: CLOCK_MONOTONIC

cdef enum:
    UNSURE = -1
    DENSE = 0  # as in DataType: this module imports nothing of pydp2
    TEXT = 4
    RAW = 5
    SCALAR = 100  # dense elements that are one number each
    _FAILED = -3  # what raised has left this value of a variable
    _MAX_COUNT = 0x7FFFFFFF
    _COPY_LIMIT = 64 * 1024

cdef double _LARGEST = 3.4e38  # a larger value, or NaN, is checked more closely

cdef object _ndarray = np.ndarray
cdef object _float64 = np.float64
cdef object _float32 = np.float32
cdef object _uint16 = np.uint16
cdef tuple _numpy_ints = (np.int64, np.int32, np.int16, np.int8, np.uint8, np.uint16, np.uint32, np.uint64)


cdef inline int64_t _nanoseconds() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef inline bint _is_list_or_tuple(object value):
    return PyList_CheckExact(value) or PyTuple_CheckExact(value)


cdef inline bint _is_numpy_int(object value):
    for kind in _numpy_ints:
        if type(value) is kind:
            return True
    return False


cdef inline bint _plain_floats(PyObject** items, Py_ssize_t count, float* at) noexcept:
    """Take the usual case of a dense element: floats within the range of float32, and nothing else."""
    cdef Py_ssize_t i
    cdef double number
    cdef bint large = False
    for i in range(count):
        if not is_float(items[i]):
            return False
        number = as_double(items[i])
        large |= not -_LARGEST < number < _LARGEST
        at[i] = <float>number
    return not large


cdef inline void _store_id(bint wide, char* at, Py_ssize_t i, int64_t got) noexcept nogil:
    """Write ``got`` as number ``i`` of the ids at ``at``, of 8 bytes each or of 4."""
    if wide:
        (<int64_t*>at)[i] = got
    else:
        (<int32_t*>at)[i] = <int32_t>got


cdef object _array(data, dtype):
    """Return ``data``, which has a buffer, as an array; numpy takes no empty buffer."""
    return np.frombuffer(data, dtype) if len(data) else np.empty(0, dtype)


@cython.final
cdef class DetachedBytes:
    """Memory of a :class:`ByteBuffer` that was detached; freed with the last reference to this object."""

    cdef char* data
    cdef Py_ssize_t size

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)


cdef class ByteBuffer:
    """Bytes that grow at the end. :meth:`detach` copies few bytes, and hands many over with their memory."""

    cdef char* data
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity
    cdef Py_ssize_t last

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    cdef char* reserve(self, Py_ssize_t size) except NULL:
        """Return where ``size`` more bytes may be written; the caller then adds the bytes written to ``used``."""
        cdef Py_ssize_t need = self.used + size
        cdef char* data
        if need > self.capacity or self.data == NULL:  # no bytes at all need an address too
            need = max(need, 2 * self.capacity, self.last + self.last // 8, 4096)
            data = <char*>PyMem_RawRealloc(self.data, need)
            if data == NULL:
                raise MemoryError
            self.data = data
            self.capacity = need
        return self.data + self.used

    cdef object detach(self):
        """Return the bytes as an object with a length and a writable buffer, and empty this one."""
        cdef DetachedBytes all_
        if self.used < _COPY_LIMIT:
            data = PyByteArray_FromStringAndSize(self.data, self.used)
            self.used = 0
            return data
        all_ = DetachedBytes.__new__(DetachedBytes)
        all_.data, all_.size = self.data, self.used
        self.last, self.data = self.used, NULL  # as many are likely to come again
        self.used = self.capacity = 0
        return all_


cdef class NativeSlotWriter:
    """Writer that packs the values of one slot, with the interface of
    :class:`pydp2.data.packers.slot_writers.PythonSlotWriter`.

    ``python_writer``: the slot writer in Python. Before it takes a value, the values that lie here are handed to it.
    """

    cdef object _python_writer
    cdef object _dtype, _stored_dtype, _pair
    cdef int _kind, _depth, _size
    cdef char _code
    cdef Py_ssize_t _width
    cdef int64_t _dim, _least, _most
    cdef bint _strict, _wide, _as_bits
    cdef Py_ssize_t _sides[64]
    cdef int _inner_sides
    cdef ByteBuffer _values, _second
    cdef ByteBuffer _counts0, _counts1, _counts2
    cdef Py_ssize_t _rows, _rows_in_python
    cdef Py_ssize_t _mark[5]
    cdef int64_t* _seen
    cdef uint32_t* _stamps
    cdef uint32_t _stamp
    cdef Py_ssize_t _slots

    def __cinit__(self, python_writer, slot_type, int depth, bint strict):
        self._python_writer = python_writer
        self._kind = slot_type.type
        self._depth = depth
        dtype = self._dtype = slot_type.element_dtype
        stored = self._stored_dtype = slot_type.stored_dtype
        self._as_bits = stored is not dtype
        self._size = dtype.itemsize
        self._pair = np.dtype([("i", dtype), ("v", np.float32)])
        self._code = ord(stored.char)
        self._width = slot_type.dim if self._kind == DENSE else 1
        if slot_type.is_scalar:
            self._kind = SCALAR
        self._set_sides(slot_type.shape)
        self._dim = slot_type.dim
        self._wide = self._size == 8
        self._strict = strict
        self._least = self._most = 0
        if dtype.kind == "b":
            self._most = 1
        elif dtype.kind in "iu":
            info = np.iinfo(dtype)
            self._least, self._most = int(info.min), min(int(info.max), 2**63 - 1)
        self._values, self._second = ByteBuffer(), ByteBuffer()
        self._counts0, self._counts1, self._counts2 = ByteBuffer(), ByteBuffer(), ByteBuffer()

    def __dealloc__(self):
        PyMem_Free(self._seen)
        PyMem_Free(self._stamps)

    cdef int _set_sides(self, shape) except -1:
        """Keep the sides of a dense element without leading ones, if arrays of several dimensions must have these."""
        self._inner_sides = -1
        if shape is None or len(shape) < 2:
            return 0
        self._inner_sides = 0
        for side in shape:
            if side != 1 or self._inner_sides:
                self._sides[self._inner_sides] = side
                self._inner_sides += 1
        return 0

    cdef inline bint _fits_shape(self, Py_buffer* view, int skipped) noexcept:
        """Return True if an array, without its first ``skipped`` dimensions, has an element in the declared order."""
        cdef int ndim = view.ndim
        if self._inner_sides < 0:
            return True
        while skipped < ndim and view.shape[skipped] == 1:
            skipped += 1
        if ndim - skipped < 2:
            return True
        return ndim - skipped == self._inner_sides and not memcmp(
            view.shape + skipped, self._sides, self._inner_sides * sizeof(Py_ssize_t)
        )

    # -- taking ----------------------------------------------------------------------------------------------------
    cdef Py_ssize_t try_write(self, object value) except -2:
        """Take ``value`` and return its bytes, or UNSURE; then nothing has changed. If this raises, call :meth:`trim`."""
        cdef Py_ssize_t size
        self._set_mark()
        size = self._level(value, self._depth)
        if size < 0:
            self._reset_to_mark()
            return UNSURE
        self._rows += 1
        return size

    cdef void _set_mark(self) noexcept:
        self._mark[0] = self._values.used
        self._mark[1] = self._second.used
        self._mark[2] = self._counts0.used
        self._mark[3] = self._counts1.used
        self._mark[4] = self._counts2.used

    cdef void _reset_to_mark(self) noexcept:
        self._values.used = self._mark[0]
        self._second.used = self._mark[1]
        self._counts0.used = self._mark[2]
        self._counts1.used = self._mark[3]
        self._counts2.used = self._mark[4]

    cdef void undo_last(self) noexcept:
        """Forget the value that was just taken."""
        self._reset_to_mark()
        self._rows -= 1

    cdef void trim(self) noexcept:
        """Forget the part of a value behind those that were taken whole."""
        cdef Py_ssize_t i, entries, kept = self._rows
        cdef int level
        cdef ByteBuffer counts
        for level in range(self._depth, 0, -1):
            counts = self._counts_at(level)
            counts.used = 4 * kept
            entries = 0
            for i in range(kept):
                entries += (<int32_t*>counts.data)[i]
            kept = entries
        self._values.used = kept * self._width * self._size
        self._second.used = 4 * kept if self._kind == 2 else 0

    cdef ByteBuffer _counts_at(self, int level):
        """Return the counts ``level`` levels above the elements."""
        cdef int place = self._depth - level
        return self._counts0 if place == 0 else self._counts1 if place == 1 else self._counts2

    cdef Py_ssize_t _level(self, object value, int level) except -2:
        cdef Py_ssize_t count, size, more, i
        cdef ByteBuffer counts
        if level == 0:
            if self._kind == DENSE:
                return self._dense(value)
            return self._one_id(value) if self._kind != SCALAR else self._one_number(value)
        if level == 1:
            size = self._many(value, &count)
            if size < 0:
                return UNSURE
        else:
            if not _is_list_or_tuple(value):
                return UNSURE
            count = PySequence_Fast_GET_SIZE(value)
            size = 0
            for i in range(count):
                more = self._level(<object>PySequence_Fast_ITEMS(value)[i], level - 1)
                if more < 0:
                    return UNSURE
                size += more
        if count > _MAX_COUNT:
            return UNSURE
        counts = self._counts_at(level)
        (<int32_t*>counts.reserve(4))[0] = <int32_t>count
        counts.used += 4
        return size + 4

    cdef Py_ssize_t _many(self, object value, Py_ssize_t* count) except -2:
        cdef Py_ssize_t i, size
        if self._kind == DENSE:
            if type(value) is _ndarray:
                return self._rows_of(value, count)
            if not _is_list_or_tuple(value):
                return UNSURE
            count[0] = PySequence_Fast_GET_SIZE(value)
            for i in range(count[0]):
                size = self._dense(<object>PySequence_Fast_ITEMS(value)[i])
                if size < 0:
                    return UNSURE
            return count[0] * self._width * self._size
        if self._kind == 2:
            return self._pairs(value, count)
        if self._kind < TEXT:
            return self._ids(value, count)
        return self._numbers(value, count) if self._kind == SCALAR else self._string(value, count)

    # -- ids and indices -------------------------------------------------------------------------------------------
    cdef inline int _id(self, PyObject* item, int64_t* out) except -2:
        cdef int overflow = 0
        if is_int(item):
            out[0] = as_int(item, &overflow)
        elif _is_numpy_int(<object>item):
            number = PyNumber_Index(<object>item)
            out[0] = as_int(<PyObject*>number, &overflow)
        else:
            return UNSURE
        return UNSURE if overflow or out[0] < 0 or out[0] >= self._dim else 0

    cdef Py_ssize_t _one_id(self, object value) except -2:
        cdef int64_t got
        cdef char* at
        if self._id(<PyObject*>value, &got) < 0:
            return UNSURE
        at = self._values.reserve(8)
        _store_id(self._wide, at, 0, got)
        self._values.used += self._size
        return self._size

    cdef Py_ssize_t _ids(self, object value, Py_ssize_t* counted) except -2:
        cdef Py_ssize_t i, count
        cdef int64_t got, last = -1
        cdef bint rising = True
        cdef char* at
        cdef PyObject** items
        if type(value) is _ndarray:
            return self._id_array(value, counted)
        if not _is_list_or_tuple(value):
            return UNSURE
        count = counted[0] = PySequence_Fast_GET_SIZE(value)
        at = self._values.reserve(count * self._size)
        items = PySequence_Fast_ITEMS(value)
        for i in range(count):
            if self._id(items[i], &got) < 0:
                return UNSURE
            rising = rising and got > last
            last = got
            _store_id(self._wide, at, i, got)
        if self._kind == 1 and not rising and self._has_duplicate(at, count):
            return UNSURE
        self._values.used += count * self._size
        return count * self._size

    cdef Py_ssize_t _id_array(self, object value, Py_ssize_t* counted) except -2:
        cdef Py_buffer view
        cdef Py_ssize_t i, count
        cdef int64_t got, last = -1
        cdef bint rising = True
        cdef char* at
        if value.ndim != 1:
            return UNSURE
        try:
            PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
        except (BufferError, ValueError):
            return UNSURE
        try:
            if view.format[0] not in (c'i', c'l', c'q') or view.format[1] != 0:
                return UNSURE
            count = counted[0] = view.len // view.itemsize
            at = self._values.reserve(count * self._size)
            for i in range(count):
                got = (<int64_t*>view.buf)[i] if view.itemsize == 8 else (<int32_t*>view.buf)[i]
                if got < 0 or got >= self._dim:
                    return UNSURE
                rising = rising and got > last
                last = got
                _store_id(self._wide, at, i, got)
            if self._kind == 1 and not rising and self._has_duplicate(at, count):
                return UNSURE
            self._values.used += count * self._size
            return count * self._size
        finally:
            PyBuffer_Release(&view)

    cdef bint _has_duplicate(self, char* at, Py_ssize_t count) except -1:
        """Return True if one of the ``count`` ids at ``at`` is there twice."""
        cdef Py_ssize_t i, slots
        cdef uint64_t place, mask
        cdef int64_t got
        if 4 * count > self._slots:
            slots = max(self._slots, 256)
            while slots < 4 * count:
                slots *= 2
            self._seen = <int64_t*>PyMem_Realloc(self._seen, slots * sizeof(int64_t))
            self._stamps = <uint32_t*>PyMem_Realloc(self._stamps, slots * sizeof(uint32_t))
            if self._seen == NULL or self._stamps == NULL:
                self._slots = 0
                raise MemoryError
            self._slots = slots
            memset(self._stamps, 0, slots * sizeof(uint32_t))
            self._stamp = 0
        self._stamp += 1
        if self._stamp == 0:
            memset(self._stamps, 0, self._slots * sizeof(uint32_t))
            self._stamp = 1
        mask = self._slots - 1
        for i in range(count):
            got = (<int64_t*>at)[i] if self._wide else (<int32_t*>at)[i]
            place = (<uint64_t>got * 0x9E3779B97F4A7C15U) >> 32 & mask
            while self._stamps[place] == self._stamp:
                if self._seen[place] == got:
                    return True
                place = (place + 1) & mask
            self._stamps[place] = self._stamp
            self._seen[place] = got
        return False

    # -- numbers ---------------------------------------------------------------------------------------------------
    cdef inline int _number(self, PyObject* item, double* out) except -2:
        if is_float(item) or type(<object>item) is _float64:
            out[0] = as_double(item)
            return 0
        if not self._strict and is_int(item):
            try:
                out[0] = PyLong_AsDouble(<object>item)
            except OverflowError:
                return UNSURE
            return 0
        return UNSURE

    cdef Py_ssize_t _dense(self, object value) except -2:
        """Take one element."""
        cdef Py_ssize_t i, width = self._width
        cdef double number
        cdef char* at
        cdef PyObject** items
        if type(value) is _ndarray:
            return self._array(value, width, 0)
        if not _is_list_or_tuple(value) or PySequence_Fast_GET_SIZE(value) != width:
            return UNSURE
        at = self._values.reserve(width * self._size)
        items = PySequence_Fast_ITEMS(value)
        if self._code == c'f':
            if not _plain_floats(items, width, <float*>at):
                for i in range(width):
                    if self._number(items[i], &number) < 0:
                        return UNSURE
                    (<float*>at)[i] = <float>number
                    if isinf((<float*>at)[i]) and not isinf(number):
                        return UNSURE
        elif self._code == c'd':
            for i in range(width):
                if self._number(items[i], &number) < 0:
                    return UNSURE
                (<double*>at)[i] = number
        elif self._least == self._most:  # float16, bfloat16
            return UNSURE
        elif self._integers(items, width, at) < 0:
            return UNSURE
        self._values.used += width * self._size
        return width * self._size

    cdef int _integers(self, PyObject** items, Py_ssize_t count, char* at) except -2:
        """Write ``count`` ints, for an integer dtype or bool."""
        cdef Py_ssize_t i
        cdef int64_t got
        cdef int overflow = 0
        for i in range(count):
            if not is_int(items[i]):
                return self._converted_integers(items, count, at)
            got = as_int(items[i], &overflow)
            if overflow or got < self._least or got > self._most:
                return UNSURE
            if self._size == 1:
                (<int8_t*>at)[i] = <int8_t>got
            elif self._size == 2:
                (<int16_t*>at)[i] = <int16_t>got
            elif self._size == 4:
                (<int32_t*>at)[i] = <int32_t>got
            else:
                (<int64_t*>at)[i] = got
        return 0

    cdef int _converted_integers(self, PyObject** items, Py_ssize_t count, char* at) except -2:
        """Write ``count`` ints as :meth:`_integers` does, some of which may be bools or ints of numpy."""
        cdef Py_ssize_t i
        cdef PyObject* item
        for i in range(count):
            if not is_int(items[i]) and not is_bool(items[i]) and not _is_numpy_int(<object>items[i]):
                return UNSURE
            number = int(<object>items[i])
            item = <PyObject*>number
            if self._integers(&item, 1, at + i * self._size) < 0:
                return UNSURE
        return 0

    cdef int _floats(self, PyObject** items, Py_ssize_t count, char* at) except -2:
        """Write ``count`` numbers by themselves, for float32 or float64."""
        cdef Py_ssize_t i
        cdef double number
        for i in range(count):
            if type(<object>items[i]) is _float32:
                number = float(<object>items[i])
            elif self._number(items[i], &number) < 0:
                return UNSURE
            if self._code == c'd':
                (<double*>at)[i] = number
            else:
                (<float*>at)[i] = <float>number
                if isinf((<float*>at)[i]) and not isinf(number):
                    return UNSURE
        return 0

    cdef int _scalars(self, PyObject** items, Py_ssize_t count) except -2:
        """Take ``count`` numbers by themselves."""
        cdef char* at = self._values.reserve(count * self._size)
        cdef int taken = UNSURE
        if self._code in (c'f', c'd'):
            taken = self._floats(items, count, at)
        elif self._least != self._most:  # equal: float16, bfloat16
            taken = self._integers(items, count, at)
        if taken == 0:
            self._values.used += count * self._size
        return taken

    cdef Py_ssize_t _one_number(self, object value) except -2:
        """Take one number by itself."""
        cdef PyObject* item = <PyObject*>value
        if type(value) is _ndarray:
            return self._array(value, 1, 0)
        return self._size if self._scalars(&item, 1) == 0 else UNSURE

    cdef Py_ssize_t _numbers(self, object value, Py_ssize_t* counted) except -2:
        """Take a sequence of numbers."""
        if type(value) is _ndarray:
            counted[0] = len(value) if value.ndim else 0
            return self._array(value, counted[0], 0) if value.ndim else UNSURE
        if not _is_list_or_tuple(value):
            return UNSURE
        counted[0] = PySequence_Fast_GET_SIZE(value)
        return counted[0] * self._size if self._scalars(PySequence_Fast_ITEMS(value), counted[0]) == 0 else UNSURE

    cdef Py_ssize_t _rows_of(self, object value, Py_ssize_t* count) except -2:
        """Take an array with an element a row."""
        cdef Py_ssize_t size
        if value.ndim < 2:
            return UNSURE
        count[0] = len(value)
        size = self._array(value, count[0] * self._width, 1)
        return size

    cdef inline Py_ssize_t _array(self, object value, Py_ssize_t width, int skipped) except -2:
        """Take ``width`` numbers in an array, whose first ``skipped`` dimensions are steps."""
        if not self._as_bits:
            return self._buffer(value, width, skipped)
        return self._buffer(value.view(_uint16), width, skipped) if value.dtype == self._dtype else UNSURE

    cdef Py_ssize_t _buffer(self, object value, Py_ssize_t width, int skipped) except -2:
        cdef Py_buffer view
        cdef Py_ssize_t i
        cdef char* at
        cdef double number
        try:
            PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
        except (BufferError, ValueError):
            return UNSURE
        try:
            if view.format[0] == 0 or view.format[1] != 0 or view.len != width * view.itemsize:
                return UNSURE
            if not self._fits_shape(&view, skipped):
                return UNSURE
            if view.format[0] == self._code and view.itemsize == self._size:
                at = self._values.reserve(view.len)
                memcpy(at, view.buf, view.len)
            elif view.format[0] == c'd' and self._code == c'f':
                at = self._values.reserve(width * 4)
                for i in range(width):
                    number = (<double*>view.buf)[i]
                    (<float*>at)[i] = <float>number
                    if isinf((<float*>at)[i]) and not isinf(number):
                        return UNSURE
            else:
                return UNSURE
            self._values.used += width * self._size
            return width * self._size
        finally:
            PyBuffer_Release(&view)

    cdef Py_ssize_t _pairs(self, object value, Py_ssize_t* counted) except -2:
        cdef Py_ssize_t i, count
        cdef int64_t got, last = -1
        cdef double number
        cdef bint rising = True
        cdef char* at
        cdef float* second
        cdef PyObject* pair
        if not _is_list_or_tuple(value):
            return UNSURE
        count = counted[0] = PySequence_Fast_GET_SIZE(value)
        at = self._values.reserve(count * self._size)
        second = <float*>self._second.reserve(count * 4)
        for i in range(count):
            pair = PySequence_Fast_ITEMS(value)[i]
            if not _is_list_or_tuple(<object>pair) or PySequence_Fast_GET_SIZE(<object>pair) != 2:
                return UNSURE
            if self._id(PySequence_Fast_ITEMS(<object>pair)[0], &got) < 0 or self._number(PySequence_Fast_ITEMS(<object>pair)[1], &number) < 0:
                return UNSURE
            rising = rising and got > last
            last = got
            _store_id(self._wide, at, i, got)
            second[i] = <float>number
            if isinf(second[i]) and not isinf(number):
                return UNSURE
        if not rising and self._has_duplicate(at, count):
            return UNSURE
        self._values.used += count * self._size
        self._second.used += count * 4
        return count * (self._size + 4)

    # -- strings ---------------------------------------------------------------------------------------------------
    cdef Py_ssize_t _string(self, object value, Py_ssize_t* counted) except -2:
        """Take the bytes of a string."""
        if self._kind == TEXT:
            if not PyUnicode_CheckExact(value):
                return UNSURE
            if is_ascii(value):
                return self._copy_bytes(ascii_data(value), PyUnicode_GET_LENGTH(value), counted)
            try:
                value = PyUnicode_AsUTF8String(value)
            except UnicodeEncodeError:
                return UNSURE
        elif not PyBytes_CheckExact(value):
            return self._buffer_bytes(value, counted)
        return self._copy_bytes(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), counted)

    cdef Py_ssize_t _buffer_bytes(self, object value, Py_ssize_t* counted) except -2:
        cdef Py_buffer view
        if type(value) is not bytearray and type(value) is not memoryview and type(value) is not _ndarray:
            return UNSURE
        try:
            PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
        except (BufferError, ValueError):
            return UNSURE
        try:
            if view.ndim != 1 or view.format[0] != c'B' or view.format[1] != 0:
                return UNSURE
            return self._copy_bytes(<const char*>view.buf, view.len, counted)
        finally:
            PyBuffer_Release(&view)

    cdef inline Py_ssize_t _copy_bytes(self, const char* data, Py_ssize_t size, Py_ssize_t* counted) except -2:
        if size > _MAX_COUNT:
            return UNSURE
        counted[0] = size
        memcpy(self._values.reserve(size), data, size)
        self._values.used += size
        return size

    # -- what the packer calls -------------------------------------------------------------------------------------
    def add(self, value):
        """Take one value and return its bytes. Raises anything that the slot writer in Python raises."""
        cdef Py_ssize_t size = _FAILED
        try:
            size = self.try_write(value)
        finally:
            if size == _FAILED:
                self.trim()
        if size >= 0:
            return size
        self._move_to_python()
        got = self._python_writer.add(value)
        self._rows_in_python += 1
        return got

    def add_checked(self, value):
        """Add a value by the general path, as :meth:`add` does; raises BadSample."""
        self._move_to_python()
        got = self._python_writer.add_checked(value)
        self._rows_in_python += 1
        return got

    def rollback(self, Py_ssize_t rows):
        """Forget all but the first ``rows`` values since the last :meth:`finish`; at most the last one."""
        if self._rows and self._rows_in_python + self._rows > rows:
            self.undo_last()
        elif not self._rows:
            self._python_writer.rollback(rows)
            self._rows_in_python = min(self._rows_in_python, rows)

    def finish(self):
        """Return the counts and runs of all values added since the last call, and True if all are known to be good."""
        if self._rows_in_python:
            self._move_to_python()
            self._rows_in_python = 0
            return self._python_writer.finish()
        counts = self._finish_counts()
        runs = [_array(self._values.detach(), self._stored_dtype)]
        if self._kind == 2:
            runs.append(_array(self._second.detach(), np.float32))
        self._rows = 0
        return counts, runs, True

    cdef list _finish_counts(self):
        cdef list all_ = [self._counts0, self._counts1, self._counts2]
        return [_array((<ByteBuffer>c).detach(), np.int32) for c in all_[:self._depth]]

    cdef int _move_to_python(self) except -1:
        """Hand what lies here to the slot writer in Python."""
        if self._rows:
            counts = self._finish_counts()
            values = _array(self._values.detach(), self._dtype)
            if self._kind == 2:
                pairs = np.empty(len(values), self._pair)
                pairs["i"] = values
                pairs["v"] = _array(self._second.detach(), np.float32)
                values = pairs
            self._python_writer.append_packed(counts, values)
            self._rows_in_python += self._rows
            self._rows = 0
        return 0


cdef class NativeSampleLoop:
    """Loop that draws samples from a generator, and packs those that it is certain of; see
    :class:`pydp2.data.packers.sample_loop.PythonSampleLoop`."""

    cdef tuple _writers, _names, _other_names
    cdef bint _single, _timed, _extra_keys_seen
    cdef Py_buffer _view
    cdef int64_t* _mark
    cdef int _sample_field, _since_field, _running_field
    cdef Py_ssize_t _slots
    cdef Py_ssize_t _rows, _bytes
    cdef public bint in_user_code, send_pending, counts_collected, measures
    cdef public int64_t packing_ns

    def __cinit__(self, tuple writers, tuple names, tuple other_names, bint single, mark, tuple fields, bint timed):
        for writer in writers:
            if type(writer) is not NativeSlotWriter:
                raise TypeError("compiled slot writers are needed")
        self._writers = writers
        self._names = names
        self._other_names = other_names
        self._single = single
        self._slots = len(writers)
        PyObject_GetBuffer(mark, &self._view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        self._mark = <int64_t*>self._view.buf
        self._sample_field, self._since_field, self._running_field = fields
        self._timed = timed

    def __dealloc__(self):
        if self._view.buf != NULL:
            PyBuffer_Release(&self._view)

    def collect_counts(self):
        """Return how many samples were packed since the last call, and their bytes."""
        counts = self._rows, self._bytes
        self._rows = self._bytes = 0
        return counts

    def next_unpacked(self, iterator, int64_t sample_index, int64_t rows, int64_t room, int64_t credit, int64_t cost, int64_t ns):
        """Return the next sample that is not packed; those before it are."""
        cdef int64_t until = _nanoseconds() + ns
        cdef int64_t drawn_at, packed = 0
        cdef Py_ssize_t size
        cdef PyObject* drawn
        self.counts_collected = False
        while True:
            self._mark[self._sample_field] = sample_index
            if self._timed:
                self._mark[self._since_field] = _nanoseconds()
            self._mark[self._running_field] = 1
            self.in_user_code = True
            try:
                sample = next(iterator)
            finally:
                self.in_user_code = False
            drawn_at = _nanoseconds()
            if self.send_pending or self.counts_collected or rows <= 0 or room <= 0 or drawn_at > until:
                return sample
            size = _FAILED
            try:
                size = self._pack(sample)
            finally:  # there was no memory for it, or a key cannot be compared
                if size == _FAILED:
                    self._take_back()
            if size < 0:
                return sample
            credit -= size + cost
            if credit < 0:
                self._unpack(self._slots)
                return sample
            room -= size
            self._rows += 1
            self._bytes += size
            rows -= 1
            sample_index += 1
            if self.measures:  # the first ones, then one of eight: reading the clock is not free
                packed += 1
                if packed <= 8:
                    self.packing_ns += _nanoseconds() - drawn_at
                elif packed & 7 == 0:
                    self.packing_ns += 8 * (_nanoseconds() - drawn_at)

    cdef Py_ssize_t _pack(self, object sample) except -2:
        cdef Py_ssize_t i, size = 0, more
        cdef PyObject* value
        cdef bint by_name = PyDict_CheckExact(sample)
        if by_name:
            if self._names is None:
                return UNSURE
            if PyDict_Size(sample) > self._slots and not self._extra_keys_seen and self._has_unknown_key(sample):
                self._extra_keys_seen = True  # returned once, so that its keys are checked
                return UNSURE
        elif self._single:
            return (<NativeSlotWriter>PyTuple_GET_ITEM(self._writers, 0)).try_write(sample)
        elif not _is_list_or_tuple(sample) or PySequence_Fast_GET_SIZE(sample) != self._slots:
            return UNSURE
        for i in range(self._slots):
            if by_name:
                value = PyDict_GetItemWithError(sample, <object>PyTuple_GET_ITEM(self._names, i))
                if value == NULL:
                    self._unpack(i)
                    return UNSURE
            else:
                value = PySequence_Fast_ITEMS(sample)[i]
            more = (<NativeSlotWriter>PyTuple_GET_ITEM(self._writers, i)).try_write(<object>value)
            if more < 0:
                self._unpack(i)
                return UNSURE
            size += more
        return size

    cdef void _take_back(self) noexcept:
        """Take back the sample that was being packed, which some of the slots have: the last one does not."""
        cdef Py_ssize_t i
        cdef NativeSlotWriter last = <NativeSlotWriter>PyTuple_GET_ITEM(self._writers, self._slots - 1)
        cdef NativeSlotWriter each
        for i in range(self._slots):
            each = <NativeSlotWriter>PyTuple_GET_ITEM(self._writers, i)
            if each._rows_in_python + each._rows > last._rows_in_python + last._rows:
                each.undo_last()
            else:
                each.trim()

    cdef bint _has_unknown_key(self, dict sample) except -1:
        """Return True if ``sample``, which has more keys than there are slots, has one that was not declared; it may
        return False if a slot's is missing."""
        cdef Py_ssize_t known = self._slots
        for name in self._other_names:
            if name in sample:
                known += 1
        return PyDict_Size(sample) > known

    cdef void _unpack(self, Py_ssize_t count) noexcept:
        """Take back the last value of the first ``count`` slots."""
        cdef Py_ssize_t i
        for i in range(count):
            (<NativeSlotWriter>PyTuple_GET_ITEM(self._writers, i)).undo_last()
