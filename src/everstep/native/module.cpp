// everstep.native._kernels: the Python signatures. Lists are converted with the GIL held, kernels run without it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <bit>

#include "bus.hpp"
#include "calls.hpp"
#include "dispatch.hpp"
#include "spans.hpp"

namespace nb = nanobind;
using namespace nb::literals;

static_assert(std::endian::native == std::endian::little, "digests and logs are defined over little-endian bits");

NB_MODULE(_kernels, m) {
    using namespace everstep;
    nb::set_leak_warnings(false);  // a process that ends in the middle of training lets go of nothing

    m.def("digest", &digest, "pointers"_a, "counts"_a, "widths"_a, "starts"_a, "threads"_a,
          nb::call_guard<nb::gil_scoped_release>());

    m.def("digest_box", &digest_box, "address"_a, "shape"_a, "steps"_a, "width"_a, "first"_a, "indices"_a, "threads"_a,
          nb::call_guard<nb::gil_scoped_release>());

    m.def("gather", &gather, "sources"_a, "sizes"_a, "target"_a, "offsets"_a, "threads"_a,
          nb::call_guard<nb::gil_scoped_release>());

    m.def("lay", &lay, "source"_a, "target"_a, "shape"_a, "source_steps"_a, "target_steps"_a, "width"_a,
          nb::call_guard<nb::gil_scoped_release>());

    m.def(
        "adam",
        [](std::string implementation, Addresses parameters, Addresses exp_avgs, Addresses exp_avg_sqs,
           Addresses max_exp_avg_sqs, Counts counts, std::vector<Addresses> gradients,
           std::vector<std::vector<double>> steps, std::vector<std::array<double, 5>> hyper, bool decoupled,
           bool maximize, bool is_double, bool lr_float32, std::uintptr_t square_root, int threads) {
            const AdamCall call{std::move(implementation), std::move(parameters), std::move(exp_avgs),
                                std::move(exp_avg_sqs), std::move(max_exp_avg_sqs), std::move(counts),
                                std::move(gradients), std::move(steps), std::move(hyper), decoupled, maximize,
                                lr_float32, square_root, threads};
            is_double ? adam<double>(call) : adam<float>(call);
        },
        "implementation"_a, "parameters"_a, "exp_avgs"_a, "exp_avg_sqs"_a, "max_exp_avg_sqs"_a, "counts"_a,
        "gradients"_a, "steps"_a, "hyper"_a, nb::kw_only(), "decoupled"_a, "maximize"_a, "double"_a, "lr_float32"_a,
        "square_root"_a, "threads"_a, nb::call_guard<nb::gil_scoped_release>());

    m.def(
        "sgd",
        [](std::string implementation, Addresses parameters, Addresses momentum_buffers, Counts counts,
           std::vector<Addresses> gradients, std::vector<std::vector<bool>> first,
           std::vector<std::array<double, 4>> hyper, bool nesterov, bool maximize, bool is_double, int threads) {
            const SgdCall call{std::move(implementation), std::move(parameters), std::move(momentum_buffers),
                               std::move(counts), std::move(gradients), std::move(first), std::move(hyper), nesterov,
                               maximize, threads};
            is_double ? sgd<double>(call) : sgd<float>(call);
        },
        "implementation"_a, "parameters"_a, "momentum_buffers"_a, "counts"_a, "gradients"_a, "first"_a, "hyper"_a,
        nb::kw_only(), "nesterov"_a, "maximize"_a, "double"_a, "threads"_a, nb::call_guard<nb::gil_scoped_release>());

    m.def("store", [](std::uintptr_t address, std::uint64_t value) {
        std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(address)).store(value);
    }, "address"_a, "value"_a);
    m.def("load", [](std::uintptr_t address) {
        return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(address)).load();
    }, "address"_a);

    nb::class_<Copies>(m, "Copies")
        .def(nb::init<std::vector<std::uint64_t>, std::vector<std::uint64_t>, std::vector<std::size_t>>(), "places"_a,
             "sources"_a, "sizes"_a);
    using Unlocked = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<Bus>(m, "Bus")
        .def(nb::init<std::uintptr_t, int, std::uint64_t, std::uint64_t>(), "stream"_a, "wakes"_a, "numbers"_a, "flag"_a)
        .def_prop_ro_static("NUMBERS", [](nb::handle) { return Bus::kNumbers; })
        .def("copy", &Bus::copy, "copies"_a, "address"_a, "training"_a, "portion_bytes"_a, Unlocked())
        .def("write", &Bus::write, "address"_a, "value"_a, Unlocked())
        .def("hurry", &Bus::hurry, "number"_a, Unlocked())
        .def("asked", &Bus::asked)
        .def("close", &Bus::close, Unlocked());

    m.def("capability", [] { return std::string(active_kernels().name); });
    m.def("threads_max", &threads_max);
    m.def("use", &use_kernels, "capability"_a);
}
