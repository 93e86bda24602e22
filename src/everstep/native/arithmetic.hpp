// The two operations that a compiler must neither contract, reorder nor approximate. Built with -ffp-contract=off.
// Without hardware FMA, __builtin_fma calls libm's, which is correctly rounded as well: the same bits, only slower.
#pragma once

namespace everstep::EVERSTEP_KERNELS {

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }

// x / c, correctly rounded, given 1.0 / c. The divider is what limits Adam once gradients are applied k at a time.
// In double the product's error is below 2^-51 relative, while the quotient of two 24-bit numbers is never a midpoint
// of 24-bit numbers and is at least 2^-49 away from one: both round to the same float. This needs a quotient that is
// zero, normal or infinite: a root is zero or above 2^-75, and c <= 1.
inline float divide_root(float x, float, double reciprocal) {
    return static_cast<float>(static_cast<double>(x) * reciprocal);
}
inline double divide_root(double x, double c, double) { return x / c; }

// Elements of one block, to which k gradients are applied before the next is touched. 128 floats were the fastest of
// 64 to 1024 for k = 4 (12 ms; 21 at 1024), presumably because the next block's loads overlap this one's divisions.
template <class T>
inline constexpr long block_elements = 512 / sizeof(T);

// g = sign * g + p * weight_decay, as torch's add(alpha) and its fused kernels round it. Returns where the result is.
template <class T>
inline const T* effective_gradient(const T* __restrict gradient, const T* __restrict parameter, bool negate,
                                   T weight_decay, T* __restrict scratch, long n) {
    if (!negate && weight_decay == 0) return gradient;
    const T sign = negate ? T(-1) : T(1);
    if (weight_decay == 0) {
        for (long i = 0; i < n; ++i) scratch[i] = sign * gradient[i];
    } else {
        for (long i = 0; i < n; ++i) scratch[i] = fma(parameter[i], weight_decay, sign * gradient[i]);
    }
    return scratch;
}

}  // namespace everstep::EVERSTEP_KERNELS
