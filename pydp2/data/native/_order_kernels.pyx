# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Compute the order in compiled form: random words, picks, whole batches. The same is written in Python in
:mod:`pydp2.order.random_bits`, :mod:`pydp2.order.pool` and :mod:`pydp2.order.batcher`."""

from libc.stdint cimport int64_t, uint64_t

cdef extern from *:
    """
    static inline uint64_t pydp2_high(uint64_t a, uint64_t b) { return (uint64_t)(((unsigned __int128)a * b) >> 64); }
    """
    uint64_t high "pydp2_high"(uint64_t, uint64_t) nogil


cdef inline void _philox_block(uint64_t block, uint64_t k, uint64_t m, uint64_t* word) noexcept nogil:
    """Write the four words of one block of Philox 4x64, 10 rounds."""
    cdef uint64_t a = block, b = 0, c = 0, d = 0, e, f
    cdef int round_
    for round_ in range(10):
        if round_:
            k += 0x9E3779B97F4A7C15U
            m += 0xBB67AE8584CAA73BU
        e = high(0xD2E7470EE14C6C93U, a)
        f = high(0xCA5A826395121157U, c)
        a, b, c, d = f ^ b ^ k, 0xCA5A826395121157U * c, e ^ d ^ m, 0xD2E7470EE14C6C93U * a
    word[0], word[1], word[2], word[3] = a, b, c, d


def philox(uint64_t low_key, uint64_t high_key, uint64_t first, uint64_t[::1] out):
    """Write raw 64-bit words of Philox 4x64, 10 rounds, from word number ``first`` on."""
    cdef uint64_t word[4]
    cdef Py_ssize_t i, count = out.shape[0]
    for i in range(count):
        if i == 0 or (first + i) % 4 == 0:  # the counter of a block of four words begins at 1
            _philox_block((first + i) // 4 + 1, low_key, high_key, word)
        out[i] = word[(first + i) % 4]


cdef inline int64_t _pick_one(int64_t* row_ids, Py_ssize_t last, uint64_t bits) noexcept nogil:
    """Swap the row that ``bits`` picks with the one at ``last``, and return it."""
    cdef uint64_t bound = last + 1
    cdef uint64_t j = ((bits >> 32) * bound + (((bits & 0xFFFFFFFFU) * bound) >> 32)) >> 32
    cdef int64_t row = row_ids[j]
    row_ids[j] = row_ids[last]
    row_ids[last] = row
    return row


def pick(int64_t[::1] row_ids, const uint64_t[::1] bits, int64_t[::1] out):
    cdef Py_ssize_t i, count = bits.shape[0], size = row_ids.shape[0]
    if count > size or out.shape[0] != count:
        raise ValueError("no more can be picked than there are")
    for i in range(count):
        out[i] = _pick_one(&row_ids[0], size - 1 - i, bits[i])


# Why cut_batches stopped; the same numbers are in pydp2/order/bulk_cut.py.
cdef enum:
    _ALL_CUT = 0
    _NEEDS_ROWS = 1
    _SNAPSHOT_POINT = 2


cdef struct _Pass:
    int64_t cycle_index, block_left, pool_count, pool_bytes, drawn, byte_limited
    int64_t lanes, batch_size, bytes_limit, snapshot_min, snapshot_divisor


cdef bint _fill(_Pass* at, int64_t level, const int64_t* block_lengths, int64_t* addresses, int64_t* available,
                int64_t* pool, const int64_t[:] sizes) noexcept nogil:
    """Pull from the lanes until the pool holds ``level`` rows; False where the lane whose turn it is has none."""
    cdef int64_t count, i, lane
    cdef const int64_t* rows
    while at.pool_count < level:
        if at.pool_bytes >= at.bytes_limit and at.pool_count >= at.batch_size:
            at.byte_limited = 1
            return True
        if at.block_left == 0:
            at.cycle_index = (at.cycle_index + 1) % at.lanes
            at.block_left = block_lengths[at.cycle_index]
        lane = at.cycle_index
        count = min(min(at.block_left, available[lane]), level - at.pool_count)
        if count == 0:
            return False
        rows = <const int64_t*>addresses[lane]
        for i in range(count):
            if at.pool_bytes >= at.bytes_limit and at.pool_count >= at.batch_size:
                count = i
                break
            pool[at.pool_count] = rows[i]
            at.pool_bytes += sizes[rows[i]]
            at.pool_count += 1
        addresses[lane] += 8 * count
        available[lane] -= count
        at.block_left -= count
    return True


cdef int64_t _draw(_Pass* at, const uint64_t* key, int64_t* pool, const int64_t[:] sizes, int64_t* out) noexcept nogil:
    """Draw one batch from the pool and return its bytes."""
    cdef int64_t count = min(at.batch_size, at.pool_count), i, nbytes = 0
    cdef uint64_t word[4]
    for i in range(count):
        if i % 4 == 0:
            _philox_block(i // 4 + 1, key[0], key[1], word)
        out[i] = _pick_one(pool, at.pool_count - 1 - i, word[i % 4])
        nbytes += sizes[out[i]]
    at.pool_count -= count
    at.pool_bytes -= nbytes
    at.drawn += count
    return nbytes


def cut_batches(int64_t[::1] state, const int64_t[::1] limits, const int64_t[::1] block_lengths,
                int64_t[::1] addresses, int64_t[::1] available, int64_t[::1] pool, const int64_t[:] sizes,
                const uint64_t[:, ::1] keys, const int64_t[::1] levels, int64_t[::1] rows, int64_t[:, ::1] batches):
    cdef _Pass at
    cdef Py_ssize_t n, count = keys.shape[0], lanes = block_lengths.shape[0], i
    cdef int64_t reach, most = 0, taken = 0, before
    cdef int reason = _ALL_CUT
    if state.shape[0] != 6 or limits.shape[0] != 4 or keys.shape[1] != 2 or levels.shape[0] != count:
        raise ValueError("the state, the limits, keys and levels of the batches do not go together")
    if not lanes or addresses.shape[0] != lanes or available.shape[0] != lanes:
        raise ValueError("each lane has a length of its turns, an address and a number of rows")
    if batches.shape[0] != count or batches.shape[1] != 3 or not 1 <= limits[0] <= <int64_t>1 << 31 or limits[3] < 1:
        raise ValueError("there is no room for the batches")
    at.cycle_index, at.block_left, at.pool_count, at.pool_bytes, at.drawn = state[0], state[1], state[2], state[3], state[4]
    at.byte_limited, at.lanes = state[5], lanes
    at.batch_size, at.bytes_limit, at.snapshot_min, at.snapshot_divisor = limits[0], limits[1], limits[2], limits[3]
    reach = at.pool_count
    for i in range(lanes):
        reach += available[i]
    for n in range(count):
        most = max(most, levels[n])
    if not 0 <= at.cycle_index < lanes or at.pool_count < 0 or min(reach, max(most, at.pool_count)) > pool.shape[0]:
        raise ValueError("there is no room in the pool")
    if rows.shape[0] < min(reach, count * limits[0]):
        raise ValueError("there is no room for the rows")
    n = 0
    with nogil:
        while n < count:
            if not _fill(&at, levels[n], &block_lengths[0], &addresses[0], &available[0], &pool[0], sizes):
                reason = _NEEDS_ROWS
                break
            before = at.pool_count
            batches[n, 2] = _draw(&at, &keys[n, 0], &pool[0], sizes, &rows[taken])
            batches[n, 0], batches[n, 1] = before - at.pool_count, before
            taken += before - at.pool_count
            n += 1
            if at.drawn >= max(at.snapshot_min, at.pool_count // at.snapshot_divisor):
                reason = _SNAPSHOT_POINT
                break
    state[0], state[1], state[2], state[3], state[4] = at.cycle_index, at.block_left, at.pool_count, at.pool_bytes, at.drawn
    state[5] = at.byte_limited
    return n, reason
