// Two 64-bit sums over mixed (index, bits) of every element: equal for equal tensors however they are cut.
//
// Each element is mixed on its own and the sums commute, so parts, threads, devices and ranks add up to the whole.
// It is a check against bugs and bit flips, not against an adversary.
#pragma once

#include "kernels.hpp"

namespace everstep::EVERSTEP_KERNELS {

template <class Word>
Sums digest_words(const unsigned char* bytes, std::int64_t count, std::uint64_t start) {
    constexpr std::uint64_t index_key = 0x9E3779B97F4A7C15, m1 = 0xBF58476D1CE4E5B9, m2 = 0x94D049BB133111EB;
    std::uint64_t key = start * index_key;
    std::uint64_t low = 0, high = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        Word bits;
        __builtin_memcpy(&bits, bytes + i * static_cast<std::int64_t>(sizeof(Word)), sizeof(Word));
        std::uint64_t z = (bits ^ key) * m1;
        z ^= z >> 32;
        z *= m2;
        low += z;
        high += (z & 0xffffffff) * (z >> 32);
        key += index_key;
    }
    return {low, high};
}

inline Sums digest(const unsigned char* bytes, std::int64_t count, int width, std::uint64_t start) {
    switch (width) {
        case 1: return digest_words<std::uint8_t>(bytes, count, start);
        case 2: return digest_words<std::uint16_t>(bytes, count, start);
        case 4: return digest_words<std::uint32_t>(bytes, count, start);
        case 8: return digest_words<std::uint64_t>(bytes, count, start);
        default: return digest_words<std::uint64_t>(bytes, 2 * count, 2 * start);  // 16: two halves
    }
}

}  // namespace everstep::EVERSTEP_KERNELS
