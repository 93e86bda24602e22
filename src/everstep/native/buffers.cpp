// digest and gather: calls over plain bytes.
#include <cstring>
#include <numeric>

#include "calls.hpp"
#include "checks.hpp"
#include "copy.hpp"
#include "dispatch.hpp"
#include "spans.hpp"

namespace everstep {

std::vector<std::pair<std::uint64_t, std::uint64_t>> digest(const Addresses& pointers, const Counts& counts,
                                                            const std::vector<int>& widths,
                                                            const std::vector<std::uint64_t>& starts, int threads) {
    constexpr std::int64_t span_elements = 64 << 10;
    const std::size_t tensors = pointers.size();
    require_length("counts", counts.size(), tensors);
    require_length("widths", widths.size(), tensors);
    require_length("starts", starts.size(), tensors);
    require_counts("counts", counts);
    require_threads(threads);
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < tensors; ++i) {
        const int w = widths[i];
        require(w == 1 || w == 2 || w == 4 || w == 8 || w == 16,
                "width " + std::to_string(w) + " is none of 1, 2, 4, 8, 16");
        bytes += counts[i] * w;
    }
    const std::vector<Span> spans = cut(counts, span_elements);
    std::vector<Sums> parts(spans.size());
    const auto kernel = active_kernels().digest;
    for_each_span(spans, bytes, threads, [&](std::size_t i) {
        const Span& s = spans[i];
        const auto* first = reinterpret_cast<const unsigned char*>(pointers[s.tensor]) + s.begin * widths[s.tensor];
        const std::uint64_t start = starts[s.tensor] + static_cast<std::uint64_t>(s.begin);
        parts[i] = kernel(first, s.end - s.begin, widths[s.tensor], start);
    });
    std::vector<std::pair<std::uint64_t, std::uint64_t>> sums(tensors);
    for (std::size_t i = 0; i < spans.size(); ++i) {
        sums[spans[i].tensor].first += parts[i].low;
        sums[spans[i].tensor].second += parts[i].high;
    }
    return sums;
}

void gather(const Addresses& sources, const Counts& sizes, std::uintptr_t target, const Counts& offsets, int threads) {
    constexpr std::int64_t span_bytes = 1 << 20;
    require_length("sizes", sizes.size(), sources.size());
    require_length("offsets", offsets.size(), sources.size());
    require_counts("sizes", sizes);
    require_counts("offsets", offsets);
    require_threads(threads);
    const std::vector<Span> spans = cut(sizes, span_bytes);
    const std::int64_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    for_each_span(spans, bytes, threads, [&](std::size_t i) {
        const Span& s = spans[i];
        char* const to = reinterpret_cast<char*>(target) + offsets[s.tensor] + s.begin;
        const char* const from = reinterpret_cast<const char*>(sources[s.tensor]) + s.begin;
        const auto length = static_cast<std::size_t>(s.end - s.begin);
        if (bytes > cached_bytes_max) copy_uncached(to, from, length);
        else std::memcpy(to, from, length);
    });
}

}  // namespace everstep
