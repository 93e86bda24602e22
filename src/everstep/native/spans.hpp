// Work over many tensors, cut into spans so that one parallel region serves them all.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace everstep {

struct Span {
    std::size_t tensor;
    std::int64_t begin;
    std::int64_t end;
};

// Spans of at most `length` elements, in order. `length` is a multiple of 64, so no cut creates a vector tail.
inline std::vector<Span> cut(const std::vector<std::int64_t>& counts, std::int64_t length) {
    std::vector<Span> spans;
    for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
        for (std::int64_t begin = 0; begin < counts[tensor]; begin += length) {
            const std::int64_t end = begin + length < counts[tensor] ? begin + length : counts[tensor];
            spans.push_back({tensor, begin, end});
        }
    }
    return spans;
}

// Below this many bytes, waking threads costs more than they save.
inline constexpr std::int64_t serial_bytes_max = 256 << 10;

// A forked child inherits libgomp's pool but not its threads; its first parallel region would wait for them forever.
inline const pid_t home_process = getpid();

// Calls apply(index of span) for each.
template <class Apply>
void for_each_span(const std::vector<Span>& spans, std::int64_t total_bytes, int threads, Apply&& apply) {
    const std::int64_t n = static_cast<std::int64_t>(spans.size());
    if (threads <= 1 || n <= 1 || total_bytes < serial_bytes_max || getpid() != home_process) {
        // Not `if (..)` on the pragma: even a region of one thread enters libgomp, and in a forked child may stay there.
        for (std::int64_t i = 0; i < n; ++i) apply(static_cast<std::size_t>(i));
        return;
    }
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (std::int64_t i = 0; i < n; ++i) apply(static_cast<std::size_t>(i));
}

inline int threads_max() {
#ifdef _OPENMP
    return omp_get_num_procs();
#else
    return 1;
#endif
}

}  // namespace everstep
