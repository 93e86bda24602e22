// digest, digest_box, gather and lay: calls over plain bytes.
#include <algorithm>
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
        require_width(widths[i]);
        bytes += counts[i] * widths[i];
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

namespace {

// A box in two strided places: runs of elements that follow each other in both, and where each of them begins.
class Runs {
   public:
    Runs(const Counts& shape, const Counts& one, const Counts& two) : shape_(shape), one_(one), two_(two) {
        require_length("steps", one.size(), shape.size());
        require_length("steps", two.size(), shape.size());
        require_counts("shape", shape);
        for (const std::int64_t extent : shape) elements_ *= extent;
        for (axes_ = shape.size(); axes_ && elements_; --axes_) {
            const std::int64_t extent = shape[axes_ - 1];
            if (extent > 1 && (one[axes_ - 1] != length || two[axes_ - 1] != length)) break;
            length *= extent;
        }
    }

    std::int64_t count() const { return elements_ / length; }
    std::int64_t elements() const { return elements_; }

    // Calls visit(offset in one, offset in two) for the runs [begin, end).
    template <class Visit>
    void each(std::int64_t begin, std::int64_t end, Visit&& visit) const {
        for (std::int64_t run = begin; run < end; ++run) {
            std::int64_t left = run, first = 0, second = 0;
            for (std::size_t axis = axes_; axis; --axis) {
                const std::int64_t at = left % shape_[axis - 1];
                left /= shape_[axis - 1];
                first += at * one_[axis - 1];
                second += at * two_[axis - 1];
            }
            visit(first, second);
        }
    }

    std::int64_t length = 1;

   private:
    const Counts &shape_, &one_, &two_;
    std::size_t axes_ = 0;
    std::int64_t elements_ = 1;
};

}  // namespace

std::pair<std::uint64_t, std::uint64_t> digest_box(std::uintptr_t address, const Counts& shape, const Counts& steps,
                                                   int width, std::uint64_t first, const Counts& indices,
                                                   int threads) {
    constexpr std::int64_t span_elements = 64 << 10;
    const Runs runs(shape, steps, indices);
    if (!runs.elements()) return {0, 0};
    if (runs.count() == 1) return digest({address}, {runs.length}, {width}, {first}, threads).front();
    require_width(width);
    require_threads(threads);
    const std::vector<Span> spans = cut({runs.count()}, std::max<std::int64_t>(1, span_elements / runs.length));
    std::vector<Sums> parts(spans.size());
    const auto kernel = active_kernels().digest;
    for_each_span(spans, runs.elements() * width, threads, [&](std::size_t i) {
        runs.each(spans[i].begin, spans[i].end, [&](std::int64_t place, std::int64_t index) {
            const auto* from = reinterpret_cast<const unsigned char*>(address) + place * width;
            const Sums sums = kernel(from, runs.length, width, first + static_cast<std::uint64_t>(index));
            parts[i].low += sums.low;
            parts[i].high += sums.high;
        });
    });
    Sums all;
    for (const Sums& part : parts) {
        all.low += part.low;
        all.high += part.high;
    }
    return {all.low, all.high};
}

void lay(std::uintptr_t source, std::uintptr_t target, const Counts& shape, const Counts& source_steps,
         const Counts& target_steps, int width) {
    require_width(width);
    const Runs runs(shape, source_steps, target_steps);
    if (!runs.elements()) return;
    const auto bytes = static_cast<std::size_t>(runs.length * width);
    runs.each(0, runs.count(), [&](std::int64_t from, std::int64_t to) {
        std::memcpy(reinterpret_cast<char*>(target) + to * width, reinterpret_cast<const char*>(source) + from * width,
                    bytes);
    });
}

}  // namespace everstep
