# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Draw random words and pick in compiled form; see :mod:`pydp2.order.random_bits` and :mod:`pydp2.order.picking`."""

from libc.stdint cimport int64_t, uint64_t

cdef extern from *:
    """
    static inline uint64_t pydp2_high(uint64_t a, uint64_t b) { return (uint64_t)(((unsigned __int128)a * b) >> 64); }
    """
    uint64_t high "pydp2_high"(uint64_t, uint64_t) nogil


def philox(uint64_t low_key, uint64_t high_key, uint64_t first, uint64_t[::1] out):
    """Write raw 64-bit words of Philox 4x64, 10 rounds, from word number ``first`` on."""
    cdef uint64_t a, b, c, d, e, f, k, m, block
    cdef uint64_t word[4]
    cdef Py_ssize_t i, count = out.shape[0]
    cdef int round_
    block = 0  # the counter of a block of four words begins at 1
    for i in range(count):
        if i == 0 or (first + i) % 4 == 0:
            block = (first + i) // 4 + 1
            a, b, c, d, k, m = block, 0, 0, 0, low_key, high_key
            for round_ in range(10):
                if round_:
                    k += 0x9E3779B97F4A7C15U
                    m += 0xBB67AE8584CAA73BU
                e = high(0xD2E7470EE14C6C93U, a)
                f = high(0xCA5A826395121157U, c)
                a, b, c, d = f ^ b ^ k, 0xCA5A826395121157U * c, e ^ d ^ m, 0xD2E7470EE14C6C93U * a
            word[0], word[1], word[2], word[3] = a, b, c, d
        out[i] = word[(first + i) % 4]


def pick(int64_t[::1] row_ids, const uint64_t[::1] bits, int64_t[::1] out):
    cdef Py_ssize_t i, count = bits.shape[0], last = row_ids.shape[0] - 1
    cdef uint64_t bound, j
    cdef int64_t row
    if count > row_ids.shape[0] or out.shape[0] != count:
        raise ValueError("no more can be picked than there are")
    for i in range(count):
        bound = last + 1
        j = ((bits[i] >> 32) * bound + (((bits[i] & 0xFFFFFFFFU) * bound) >> 32)) >> 32
        row = row_ids[j]
        row_ids[j] = row_ids[last]
        row_ids[last] = row
        out[i] = row
        last -= 1
