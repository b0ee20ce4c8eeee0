# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Find and decode the lists of tf.train.Example in compiled form: :mod:`pydp2.formats.tf_example`."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    FIRST = 0x0A  # tags of fields 1 and 2 with a length
    SECOND = 0x12
    MOST_VARINT = 10  # bytes of a number of 64 bits


cdef struct Field:
    int tag
    Py_ssize_t start
    Py_ssize_t stop  # 0: there is none


cdef inline Field _field(const uint8_t* data, Py_ssize_t at, Py_ssize_t stop) noexcept nogil:
    """Return the field at ``at``, which must have a tag of one byte, and a length that stays below ``stop``."""
    cdef Field field
    cdef Py_ssize_t length = 0
    cdef int shift = 0
    field.tag, field.start, field.stop = 0, 0, 0
    if stop - at < 2:
        return field
    field.tag = data[at]
    at += 1
    while at < stop and shift <= 28:
        length |= <Py_ssize_t>(data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            if length <= stop - at:
                field.start, field.stop = at, at + length
            break
    return field


cdef inline Field _only(const uint8_t* data, Py_ssize_t at, Py_ssize_t stop, int tag) noexcept nogil:
    """Return the field that alone fills ``data[at:stop]``; its ``stop`` is 0 if none with this tag does."""
    cdef Field field = _field(data, at, stop)
    if field.tag != tag or field.stop != stop:
        field.stop = 0
    return field


cdef bint _find(
    const uint8_t* data, Py_ssize_t start, Py_ssize_t stop, const uint8_t* name, Py_ssize_t length, int kind,
    int64_t* place,
) noexcept nogil:
    """Write where the list of the feature ``name`` lies in the Example ``data[start:stop]``. Return False for anything
    but one list of one field in the last feature of this name."""
    cdef Field entry, key, value
    cdef Field whole = _only(data, start, stop, FIRST)
    cdef Py_ssize_t at = whole.start
    cdef bint found = False
    if not whole.stop:
        return False
    while at < stop:
        entry = _field(data, at, stop)
        if entry.tag != FIRST or not entry.stop:
            return False
        key = _field(data, entry.start, entry.stop)
        if key.tag != FIRST or not key.stop:
            return False
        value = _only(data, key.stop, entry.stop, SECOND)
        if not value.stop:
            return False
        at = entry.stop
        if key.stop - key.start != length or memcmp(data + key.start, name, length):
            continue
        value = _only(data, value.start, value.stop, kind << 3 | 2)
        if value.stop:
            value = _only(data, value.start, value.stop, FIRST)
        if not value.stop:
            return False
        place[0], place[1] = value.start, value.stop
        found = True
    return found


def find_lists(
    const uint8_t[::1] data, const int64_t[::1] starts, const int64_t[::1] stops, bytes name, int kind,
    int64_t[:, ::1] places,
):
    cdef Py_ssize_t i, count = starts.shape[0], length = len(name)
    cdef const uint8_t* key = name
    cdef bint found = True
    if stops.shape[0] != count or places.shape[0] != count or places.shape[1] != 2:
        raise ValueError("as many stops and places as starts are needed")
    for i in range(count):
        if not 0 <= starts[i] <= stops[i] <= data.shape[0]:
            raise IndexError("a record lies outside of its data")
    with nogil:
        for i in range(count):
            if starts[i] == stops[i] or not _find(&data[0], starts[i], stops[i], key, length, kind, &places[i, 0]):
                found = False
                break
    return found


def _checked(const uint8_t[::1] data, const int64_t[:, ::1] places):
    cdef Py_ssize_t i
    if places.shape[1] != 2:
        raise ValueError("a place has a start and a stop")
    for i in range(places.shape[0]):
        if not 0 <= places[i, 0] <= places[i, 1] <= data.shape[0]:
            raise IndexError("a list lies outside of its data")


def count_integers(const uint8_t[::1] data, const int64_t[:, ::1] places, int64_t[::1] counts):
    cdef Py_ssize_t i, at
    cdef int64_t count, total = 0
    _checked(data, places)
    if counts.shape[0] != places.shape[0]:
        raise ValueError("as many counts as lists are needed")
    with nogil:
        for i in range(places.shape[0]):
            count = 0
            for at in range(places[i, 0], places[i, 1]):
                count += data[at] < 0x80
            counts[i] = count
            total += count
    return total


def integers(const uint8_t[::1] data, const int64_t[:, ::1] places, int64_t[::1] out):
    cdef Py_ssize_t i, at, stop, done = 0
    cdef uint64_t value
    cdef int shift
    cdef bint right = True
    _checked(data, places)
    with nogil:
        for i in range(places.shape[0]):
            at, stop = places[i, 0], places[i, 1]
            while at < stop and right:
                value = shift = 0
                while at < stop and data[at] >= 0x80 and shift < 7 * (MOST_VARINT - 1):
                    value |= <uint64_t>(data[at] & 0x7F) << shift
                    shift += 7
                    at += 1
                if at >= stop or data[at] >= 0x80 or done >= out.shape[0]:
                    right = False
                    break
                out[done] = <int64_t>(value | <uint64_t>data[at] << shift)
                at += 1
                done += 1
            if not right:
                break
    return right and done == out.shape[0]


def join(const uint8_t[::1] data, const int64_t[:, ::1] places, uint8_t[::1] out):
    cdef Py_ssize_t i, length, done = 0
    cdef bint fits = True
    _checked(data, places)
    with nogil:
        for i in range(places.shape[0]):
            length = places[i, 1] - places[i, 0]
            if length > out.shape[0] - done:
                fits = False
                break
            if length:
                memcpy(&out[done], &data[places[i, 0]], length)
            done += length
    if not fits or done != out.shape[0]:
        raise IndexError("the lists do not fill the place for them")
