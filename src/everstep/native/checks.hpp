// One sentence per refused call.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace everstep {

inline void require(bool holds, const std::string& otherwise) {
    if (!holds) throw std::invalid_argument(otherwise);
}

inline void require_length(const char* name, std::size_t length, std::size_t expected) {
    require(length == expected, std::string(name) + " has " + std::to_string(length) + " entries, expected " +
                                    std::to_string(expected));
}

// A list of k lists with one entry per tensor.
template <class Rows>
void require_rows(const char* name, const Rows& rows, std::size_t k, std::size_t tensors) {
    require_length(name, rows.size(), k);
    for (const auto& row : rows) require_length((std::string("a row of ") + name).c_str(), row.size(), tensors);
}

inline void require_counts(const char* name, const std::vector<std::int64_t>& counts) {
    for (const std::int64_t count : counts) require(count >= 0, std::string(name) + " holds a negative number");
}

inline void require_width(int width) {
    require(width == 1 || width == 2 || width == 4 || width == 8 || width == 16,
            "width " + std::to_string(width) + " is none of 1, 2, 4, 8, 16");
}

inline void require_threads(int threads) { require(threads >= 1, "threads must be at least 1"); }

}  // namespace everstep
