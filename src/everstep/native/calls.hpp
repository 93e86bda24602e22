// The exposed calls: check list lengths, round the scalars as torch does, cut the tensors, run the active kernels.
// Pointers arrive as integers and are trusted. Every check throws std::invalid_argument (ValueError in Python).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace everstep {

using Addresses = std::vector<std::uintptr_t>;
using Counts = std::vector<std::int64_t>;

std::vector<std::pair<std::uint64_t, std::uint64_t>> digest(const Addresses& pointers, const Counts& counts,
                                                            const std::vector<int>& widths,
                                                            const std::vector<std::uint64_t>& starts, int threads);

void gather(const Addresses& sources, const Counts& sizes, std::uintptr_t target, const Counts& offsets, int threads);

std::pair<std::uint64_t, std::uint64_t> digest_box(std::uintptr_t address, const Counts& shape, const Counts& steps,
                                                   int width, std::uint64_t first, const Counts& indices,
                                                   int threads);

void lay(std::uintptr_t source, std::uintptr_t target, const Counts& shape, const Counts& source_steps,
         const Counts& target_steps, int width);

struct AdamCall {
    std::string implementation;
    Addresses parameters, exp_avgs, exp_avg_sqs, max_exp_avg_sqs;
    Counts counts;
    std::vector<Addresses> gradients;         // [k][tensor]
    std::vector<std::vector<double>> steps;   // [k][tensor]
    std::vector<std::array<double, 5>> hyper;  // [k] lr, beta1, beta2, eps, weight_decay
    bool decoupled, maximize, lr_float32;
    std::uintptr_t square_root;
    int threads;
};

struct SgdCall {
    std::string implementation;
    Addresses parameters, momentum_buffers;
    Counts counts;
    std::vector<Addresses> gradients;         // [k][tensor]
    std::vector<std::vector<bool>> first;     // [k][tensor]
    std::vector<std::array<double, 4>> hyper;  // [k] lr, momentum, dampening, weight_decay
    bool nesterov, maximize;
    int threads;
};

template <class T>
void adam(const AdamCall& call);

template <class T>
void sgd(const SgdCall& call);

}  // namespace everstep
