# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Gather, sort and release rows and encode sets in compiled form: :mod:`pydp2.data.rowstore.gather`,
:mod:`pydp2.order.pool`, :mod:`pydp2.data.columns.sample_set`."""

from collections import deque

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_STRIDED, PyBUF_STRIDED_RO, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_GetBuffer)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from posix.stdlib cimport posix_memalign
from libc.string cimport memcpy, memmove, memset

cdef extern from *:
    """
    static inline void pydp2_fence(void) { __sync_synchronize(); }

    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>

    #define PYDP2_RING 64 /* copies that wait at most */

    typedef struct {
        char *to;
        const char *from;
        const int64_t *rows;
        int64_t count;
        size_t size;
    } pydp2_copy;

    typedef struct {
        pthread_t thread;
        pthread_mutex_t lock;
        pthread_cond_t work, progress;
        pydp2_copy ring[PYDP2_RING];
        uint64_t submitted, done;
        int stop;
    } pydp2_copier;

    static void *pydp2_copy_all(void *given) {
        pydp2_copier *c = (pydp2_copier *)given;
        pthread_mutex_lock(&c->lock);
        for (;;) {
            while (c->done == c->submitted && !c->stop)
                pthread_cond_wait(&c->work, &c->lock);
            if (c->done == c->submitted)
                break;
            pydp2_copy one = c->ring[c->done % PYDP2_RING];
            pthread_mutex_unlock(&c->lock);
            for (int64_t i = 0; i < one.count; i++)
                memcpy(one.to + one.rows[i] * one.size, one.from + i * one.size, one.size);
            pthread_mutex_lock(&c->lock);
            __atomic_store_n(&c->done, c->done + 1, __ATOMIC_RELEASE);
            pthread_cond_broadcast(&c->progress);
        }
        pthread_mutex_unlock(&c->lock);
        return NULL;
    }

    static pydp2_copier *pydp2_copier_new(void) {
        pydp2_copier *c = (pydp2_copier *)calloc(1, sizeof(pydp2_copier));
        sigset_t all, before;
        pthread_attr_t small;
        int failed;
        if (c == NULL)
            return NULL;
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->work, NULL);
        pthread_cond_init(&c->progress, NULL);
        sigfillset(&all); /* signals are for the threads of Python */
        pthread_sigmask(SIG_SETMASK, &all, &before);
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 1 << 18);
        failed = pthread_create(&c->thread, &small, pydp2_copy_all, c);
        pthread_attr_destroy(&small);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (failed) {
            free(c);
            return NULL;
        }
        return c;
    }

    static uint64_t pydp2_copier_done(pydp2_copier *c) { return __atomic_load_n(&c->done, __ATOMIC_ACQUIRE); }

    static void pydp2_copier_wait(pydp2_copier *c, uint64_t number) {
        pthread_mutex_lock(&c->lock);
        while (c->done < number)
            pthread_cond_wait(&c->progress, &c->lock);
        pthread_mutex_unlock(&c->lock);
    }

    static void pydp2_copier_add(pydp2_copier *c, pydp2_copy one) {
        pthread_mutex_lock(&c->lock);
        while (c->submitted - c->done == PYDP2_RING)
            pthread_cond_wait(&c->progress, &c->lock);
        c->ring[c->submitted % PYDP2_RING] = one;
        c->submitted++;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
    }

    static void pydp2_copier_free(pydp2_copier *c) {
        pthread_mutex_lock(&c->lock);
        c->stop = 1;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
        free(c);
    }
    """
    ctypedef struct pydp2_copy:
        char* to
        const char* from_ "from"
        const int64_t* rows
        int64_t count
        size_t size
    ctypedef struct pydp2_copier:
        uint64_t submitted
    void _full_fence "pydp2_fence"() noexcept
    pydp2_copier* pydp2_copier_new() noexcept nogil
    uint64_t pydp2_copier_done(pydp2_copier*) noexcept nogil
    void pydp2_copier_wait(pydp2_copier*, uint64_t) noexcept nogil
    void pydp2_copier_add(pydp2_copier*, pydp2_copy) noexcept nogil
    void pydp2_copier_free(pydp2_copier*) noexcept nogil


def fence():
    """Let no read or write of this thread be seen in another order across this call."""
    _full_fence()


def bytes_to_boundary(memory, Py_ssize_t boundary):
    """Return how many bytes of ``memory`` come before the first address that is a multiple of ``boundary``."""
    cdef Py_buffer view
    PyObject_GetBuffer(memory, &view, PyBUF_SIMPLE)
    cdef Py_ssize_t past = <size_t>view.buf % <size_t>boundary
    PyBuffer_Release(&view)
    return boundary - past if past else 0


# Memory that was given back and is kept for the next array of about its size. The lock of the interpreter guards it.
cdef enum:
    MOST_BLOCKS = 32
cdef struct _Block:
    void* at
    size_t room
cdef _Block _kept[MOST_BLOCKS]  # the one that was given back first comes first
cdef int _kept_count = 0
cdef size_t _kept_bytes = 0
cdef size_t _most_kept = 64 << 20
cdef size_t _largest_kept = 256 << 20


cdef void _remove_kept(int index) noexcept:
    global _kept_count, _kept_bytes
    _kept_bytes -= _kept[index].room
    _kept_count -= 1
    memmove(&_kept[index], &_kept[index + 1], (_kept_count - index) * sizeof(_Block))


cdef void _free_first() noexcept:
    free(_kept[0].at)
    _remove_kept(0)


cdef class Memory:
    """Memory of ``size`` bytes at a multiple of 64; what it holds is not set. It is kept when nothing refers to it.

    The system fills each page of fresh memory with zeros, when it is first written to, which takes longer than to copy
    a batch into memory that was used before. What is kept is at most 64 MiB, or two blocks of at most 256 MiB.
    """

    cdef void* _at
    cdef Py_ssize_t _size
    cdef size_t _room

    def __cinit__(self, Py_ssize_t size):
        cdef size_t step = 4096
        cdef int i
        if size < 0:
            raise ValueError("memory has a size")
        while step * 16 < <size_t>size:
            step *= 2
        self._size, self._room = size, (<size_t>size + step - 1) // step * step  # at most an eighth more
        for i in range(_kept_count - 1, -1, -1):  # the last one is warm
            if _kept[i].room == self._room:
                self._at = _kept[i].at
                _remove_kept(i)
                return
        if posix_memalign(&self._at, 64, self._room):
            self._at = NULL
            raise MemoryError(f"Unable to allocate {size} bytes")

    def __dealloc__(self):
        global _kept_count, _kept_bytes
        if self._at == NULL:
            return
        if self._room > _largest_kept:
            free(self._at)
            return
        while _kept_count == MOST_BLOCKS or (_kept_count >= 2 and _kept_bytes + self._room > _most_kept):
            _free_first()
        _kept[_kept_count].at, _kept[_kept_count].room = self._at, self._room
        _kept_count += 1
        _kept_bytes += self._room

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self._at, self._size, 0, flags)


def free_kept_memory():
    """Give the memory that is kept back to the system, and return its number of bytes."""
    cdef size_t count = _kept_bytes
    while _kept_count:
        _free_first()
    return count


def gather(source, const int64_t[::1] starts, const int64_t[::1] counts, Py_ssize_t size, out):
    cdef Py_buffer theirs, mine
    cdef Py_ssize_t i, at = 0, length, rows = starts.shape[0], there, room
    cdef bint inside = True
    if counts.shape[0] != rows or size < 1:
        raise ValueError("as many counts as starts are needed, of entries that have a size")
    PyObject_GetBuffer(source, &theirs, PyBUF_SIMPLE)
    try:
        there = theirs.len // size
        PyObject_GetBuffer(out, &mine, PyBUF_WRITABLE)
        try:
            with nogil:
                for i in range(rows):
                    if counts[i] == 0:  # the start of an empty stretch does not matter
                        continue
                    room = (mine.len - at) // size
                    if not (0 <= starts[i] <= there and 0 <= counts[i] <= min(there - starts[i], room)):
                        inside = False
                        break
                    length = counts[i] * size
                    memcpy(<char*>mine.buf + at, <char*>theirs.buf + starts[i] * size, length)
                    at += length
            if not inside:
                raise IndexError("a stretch lies outside of its array, or of the place for it")
            if at != mine.len:
                raise IndexError("the stretches do not fill what they are gathered in")
        finally:
            PyBuffer_Release(&mine)
    finally:
        PyBuffer_Release(&theirs)


cdef Py_ssize_t _entry_bytes(const Py_buffer* view) except -1:
    """Return the bytes of an entry of an array, which lie together."""
    cdef Py_ssize_t size = view.itemsize
    cdef int axis
    if view.ndim < 1:
        raise ValueError("an array with entries is needed")
    for axis in range(view.ndim - 1, 0, -1):
        if view.shape[axis] != 1 and view.strides[axis] != size:
            raise ValueError("the bytes of an entry must lie together")
        size *= view.shape[axis]
    return size


cdef inline bint _copy_entries(char* to, Py_ssize_t to_step, const char* of, Py_ssize_t of_step, Py_ssize_t size,
                               const int64_t* where, Py_ssize_t rows, Py_ssize_t there, bint is_put) noexcept nogil:
    """Copy entry ``where[i]`` to entry ``i``, or with ``is_put`` the other way. False: one lies outside."""
    cdef Py_ssize_t i, a, b
    for i in range(rows):
        if not 0 <= where[i] < there:
            return False
        a = where[i] if is_put else i
        b = i if is_put else where[i]
        if size == 4:  # a copy of a known size calls no function
            memcpy(to + a * to_step, of + b * of_step, 4)
        elif size == 8:
            memcpy(to + a * to_step, of + b * of_step, 8)
        else:
            memcpy(to + a * to_step, of + b * of_step, size)
    return True


cdef Py_ssize_t _entry_size(array) except -1:
    if array.ndim != 2 or array.itemsize != 1 or array.shape[1] < 1:
        raise ValueError("records are bytes that lie together")
    return array.shape[1]


cdef _copy_all(source, const int64_t[::1] where, out, bint is_put):
    cdef Py_buffer theirs, mine
    cdef Py_ssize_t size, rows = where.shape[0]
    cdef bint inside
    PyObject_GetBuffer(source, &theirs, PyBUF_STRIDED_RO)
    try:
        PyObject_GetBuffer(out, &mine, PyBUF_STRIDED)
        try:
            size = _entry_bytes(&theirs)
            if size != _entry_bytes(&mine) or rows != (theirs if is_put else mine).shape[0]:
                raise IndexError("what is copied does not fill the place for it")
            with nogil:
                inside = rows == 0 or _copy_entries(
                    <char*>mine.buf, mine.strides[0], <const char*>theirs.buf, theirs.strides[0], size,
                    &where[0], rows, (mine if is_put else theirs).shape[0], is_put)
            if not inside:
                raise IndexError("an entry lies outside of its array")
        finally:
            PyBuffer_Release(&mine)
    finally:
        PyBuffer_Release(&theirs)


def take(source, const int64_t[::1] where, out):
    _copy_all(source, where, out, False)


def put(source, const int64_t[::1] where, out):
    _copy_all(source, where, out, True)


def copy_fields(records, const int64_t[::1] where, offsets, arrays, bint is_put):
    """Copy the fields at ``offsets`` of ``records``, uint8 (n, size), at ``where``: to ``arrays``, or with ``is_put``
    from them. Some records at a time: then the next field of each lies in the cache of the processor."""
    cdef Py_buffer whole, part
    cdef Py_ssize_t rows = where.shape[0], begin, count, size, offset, field, fields = len(arrays)
    cdef bint inside = True
    cdef char* base
    cdef Py_ssize_t* sizes = <Py_ssize_t*>malloc(2 * fields * sizeof(Py_ssize_t) + 1)
    cdef char** parts = <char**>malloc(fields * sizeof(char*) + 1)
    if sizes == NULL or parts == NULL:
        free(sizes)
        free(parts)
        raise MemoryError("Unable to allocate a place for each field")
    held = []  # buffers of the arrays, until all is copied
    try:
        for field in range(fields):
            array, offset = arrays[field], offsets[field]
            PyObject_GetBuffer(array, &part, PyBUF_SIMPLE if is_put else PyBUF_WRITABLE)
            parts[field], size = <char*>part.buf, part.len
            PyBuffer_Release(&part)
            held.append(array)
            sizes[2 * field + 1] = offset
            sizes[2 * field] = size // rows if rows else 0
            if rows and size % rows:
                raise IndexError("what is copied does not fill the place for it")
        PyObject_GetBuffer(records, &whole, PyBUF_SIMPLE if not is_put else PyBUF_WRITABLE)
        try:
            size = _entry_size(records)
            for field in range(fields):
                if not 0 <= sizes[2 * field + 1] <= size - sizes[2 * field]:
                    raise IndexError("a field lies outside of its record")
            base = <char*>whole.buf
            with nogil:
                begin = 0
                while begin < rows and inside:
                    count = min(<Py_ssize_t>256, rows - begin)
                    for field in range(fields):
                        if is_put:
                            inside = _copy_entries(
                                base + sizes[2 * field + 1], size, parts[field] + begin * sizes[2 * field],
                                sizes[2 * field], sizes[2 * field], &where[begin], count, whole.len // size, True)
                        else:
                            inside = _copy_entries(
                                parts[field] + begin * sizes[2 * field], sizes[2 * field],
                                base + sizes[2 * field + 1], size, sizes[2 * field], &where[begin], count,
                                whole.len // size, False)
                        if not inside:
                            break
                    begin += count
            if not inside:
                raise IndexError("an entry lies outside of its array")
        finally:
            PyBuffer_Release(&whole)
    finally:
        free(sizes)
        free(parts)


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


def encode_set(const int64_t[:] files, const int64_t[:] sample_indices, uint8_t[::1] out):
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


cdef inline int _bit_length(uint64_t value) noexcept nogil:
    cdef int bits = 0
    while value:
        value >>= 1
        bits += 1
    return bits


def sort_rows(int64_t[::1] row_ids, const int64_t[:] high, const int64_t[:] low):
    # high: None where the numbers in low are all there is. What is sorted is one word for each row: its two numbers, in
    # as many bits as the largest of them need, and below them its place in row_ids.
    cdef Py_ssize_t i, count = row_ids.shape[0]
    cdef int low_bits, place_bits, shift, bits
    cdef uint64_t all_low = 0, all_high = 0, varying = 0, places
    cdef bint fits = True, has_high = high is not None
    cdef uint64_t* memory
    cdef uint64_t* words
    cdef uint64_t* others
    cdef int64_t* rows
    cdef uint32_t starts[2048]
    cdef uint32_t at, here
    cdef uint64_t digit
    if count < 2:
        return True
    if count > 0x7FFFFFFF:
        return False
    memory = <uint64_t*>malloc(3 * 8 * count)
    if memory == NULL:
        raise MemoryError(f"Unable to allocate {24 * count} bytes to sort {count} rows")
    words, others, rows = memory, memory + count, <int64_t*>(memory + 2 * count)
    with nogil:
        for i in range(count):
            rows[i] = row_ids[i]
            words[i] = <uint64_t>low[rows[i]]
            others[i] = <uint64_t>high[rows[i]] if has_high else 0
            all_low |= words[i]
            all_high |= others[i]
        low_bits, place_bits = _bit_length(all_low), _bit_length(count - 1)
        bits = low_bits + _bit_length(all_high) + place_bits
        fits = bits <= 64 and low_bits < 64  # a negative number has 64 bits
        if fits:
            for i in range(count):
                words[i] = (others[i] << low_bits | words[i]) << place_bits | <uint64_t>i
                varying |= words[i] ^ words[0]
            shift = place_bits
            while shift < bits:
                if not varying >> shift & 1:  # a digit begins at a bit that differs
                    shift += 1
                    continue
                memset(starts, 0, sizeof(starts))
                for i in range(count):
                    starts[words[i] >> shift & 2047] += 1
                at = 0
                for i in range(2048):
                    here = starts[i]
                    starts[i] = at
                    at += here
                for i in range(count):
                    digit = words[i] >> shift & 2047
                    others[starts[digit]] = words[i]
                    starts[digit] += 1
                words, others = others, words
                shift += 11
            places = (<uint64_t>1 << place_bits) - 1
            for i in range(count):
                row_ids[i] = rows[words[i] & places]
        free(memory)
    return fits


def release(uint8_t[::1] live, const int64_t[::1] ids):
    cdef Py_ssize_t i, k, count = ids.shape[0], rows = live.shape[0]
    for i in range(count):
        if not (0 <= ids[i] < rows and live[ids[i]]):
            for k in range(i):  # as if nothing had been released
                live[ids[k]] = 1
            return False
        live[ids[i]] = 0
    return True


cdef inline int64_t _rounded(int64_t length, int64_t* number) noexcept nogil:
    """Return what ``length`` is rounded up to, and the number of that among all such lengths."""
    cdef int64_t shift = 0, steps
    while length >> shift >= 32:
        shift += 1
    steps = (length + (<int64_t>1 << shift) - 1) >> shift
    number[0] = (shift << 4) + steps
    return steps << shift


# The state of stretches: the end of what was used, the room in use, the first node that is free, and how many were used.
def place(const int64_t[::1] lengths, int64_t[::1] starts, int64_t limit, int64_t[::1] heads, int64_t[:, ::1] nodes,
          int64_t[::1] state):
    cdef Py_ssize_t i, count = lengths.shape[0]
    cdef int64_t node, number, room
    if starts.shape[0] != count or heads.shape[0] != 1024 or nodes.shape[1] != 2 or state.shape[0] != 4:
        raise ValueError("each row needs a length and a place for its start")
    for i in range(count):
        if not 0 <= lengths[i] < <int64_t>1 << 48:
            raise ValueError("a row of an impossible length")
        if not lengths[i]:
            starts[i] = 0
            continue
        room = _rounded(lengths[i], &number)
        node = heads[number]
        if 0 <= node < nodes.shape[0]:
            starts[i] = nodes[node, 0]
            heads[number] = nodes[node, 1]
            nodes[node, 1] = state[2]
            state[2] = node
        elif state[0] + room > limit:
            return i
        else:
            starts[i] = state[0]
            state[0] += room
        state[1] += room
    return count


def release_stretches(const int64_t[::1] starts, const int64_t[::1] lengths, int64_t[::1] heads, int64_t[:, ::1] nodes,
                      int64_t[::1] state):
    cdef Py_ssize_t i, count = lengths.shape[0]
    cdef int64_t node, number
    if starts.shape[0] != count or heads.shape[0] != 1024 or nodes.shape[1] != 2 or state.shape[0] != 4:
        raise ValueError("each row needs a length and a start")
    for i in range(count):
        if not 0 <= lengths[i] < <int64_t>1 << 48:
            raise ValueError("a row of an impossible length")
        if not lengths[i]:
            continue
        state[1] -= _rounded(lengths[i], &number)
        node = state[2]
        if 0 <= node < nodes.shape[0]:
            state[2] = nodes[node, 1]
        else:
            node = state[3]
            if not 0 <= node < nodes.shape[0]:
                raise ValueError("there is no room to note what is free")
            state[3] = node + 1
        nodes[node, 0] = starts[i]
        nodes[node, 1] = heads[number]
        heads[number] = node


def scatter(source, const int64_t[::1] starts, const int64_t[::1] counts, Py_ssize_t size, out):
    cdef Py_buffer theirs, mine
    cdef Py_ssize_t i, at = 0, length, rows = starts.shape[0], room, there
    cdef bint inside = True
    if counts.shape[0] != rows or size < 1:
        raise ValueError("as many counts as starts are needed, of entries that have a size")
    PyObject_GetBuffer(source, &theirs, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(out, &mine, PyBUF_WRITABLE)
        try:
            room = mine.len // size
            with nogil:
                for i in range(rows):
                    if counts[i] == 0:
                        continue
                    there = (theirs.len - at) // size
                    if not (0 <= starts[i] <= room and 0 <= counts[i] <= min(room - starts[i], there)):
                        inside = False
                        break
                    length = counts[i] * size
                    memcpy(<char*>mine.buf + starts[i] * size, <char*>theirs.buf + at, length)
                    at += length
            if not inside or at != theirs.len:
                raise IndexError("a stretch lies outside of its array, or they do not make up what is copied")
        finally:
            PyBuffer_Release(&mine)
    finally:
        PyBuffer_Release(&theirs)


@cython.no_gc  # else the collector may free what is read and written before the thread has ended
cdef class CopyThread:
    cdef pydp2_copier* _copier
    cdef object _held  # number of each copy that may not be over, and what it reads and writes

    def __cinit__(self):
        self._held = deque()
        self._copier = pydp2_copier_new()
        if self._copier == NULL:
            raise MemoryError("no thread can be started that copies rows")

    def __dealloc__(self):
        cdef pydp2_copier* copier = self._copier
        if copier != NULL:
            with nogil:
                pydp2_copier_free(copier)

    @property
    def submitted(self):
        return self._copier.submitted

    @property
    def done(self):
        return pydp2_copier_done(self._copier)

    def release(self):
        done = self.done
        while self._held and self._held[0][0] <= done:
            self._held.popleft()

    def submit(self, const uint8_t[::1] source, const int64_t[::1] rows, Py_ssize_t size, uint8_t[::1] out):
        cdef Py_ssize_t i, count = rows.shape[0], room
        cdef pydp2_copy one
        cdef pydp2_copier* copier = self._copier
        if size < 1 or source.shape[0] != count * size:
            raise ValueError("a place for each row is needed")
        room = out.shape[0] // size
        for i in range(count):
            if not 0 <= rows[i] < room:
                raise IndexError("a row lies outside of its array")
        self.release()
        if not count:
            return copier.submitted
        one.to, one.from_, one.rows = <char*>&out[0], <const char*>&source[0], &rows[0]
        one.count, one.size = count, size
        self._held.append((copier.submitted + 1, source, rows, out))
        with nogil:
            pydp2_copier_add(copier, one)
        return copier.submitted

    def wait(self, uint64_t number):
        cdef pydp2_copier* copier = self._copier
        if number > copier.submitted:
            raise ValueError("there is no such copy")
        with nogil:
            pydp2_copier_wait(copier, number)
