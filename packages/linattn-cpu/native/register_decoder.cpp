// Decoders for Python, which checks tensors and passes addresses and sizes.
#include <optional>
#include <tuple>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "packed_decoder.hpp"

namespace py = pybind11;

namespace linattn {

namespace {

using Address = std::uintptr_t;

// weight, its strides, inputs, outputs, bias
using DenseArgument =
    std::tuple<Address, std::int64_t, std::int64_t, std::int64_t, std::int64_t, Address>;
using NormArgument = std::tuple<Address, Address, float>;  // weight, bias, eps
// qkv, out, expand, contract, norm1, norm2
using LayerArgument =
    std::tuple<DenseArgument, DenseArgument, DenseArgument, DenseArgument, NormArgument, NormArgument>;
// embeddings, positions, start, output, levels, max_length, head, choices, lowest log-scale
using TokenArgument = std::tuple<std::vector<Address>, Address, Address, DenseArgument, std::int64_t,
                                 std::int64_t, int, std::int64_t, float>;
// weight format, heads, head dim, hidden, feature map, eps, norm first, activation
using ShapeArgument =
    std::tuple<int, std::int64_t, std::int64_t, std::int64_t, int, float, bool, int>;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

DenseSource dense(const DenseArgument& given) {
    const auto& [weight, input_stride, output_stride, inputs, outputs, bias] = given;
    return {{at<const float>(weight), input_stride, output_stride}, inputs, outputs,
            at<const float>(bias)};
}

NormSource norm(const NormArgument& given) {
    const auto& [weight, bias, eps] = given;
    return {at<const float>(weight), at<const float>(bias), eps};
}

LayerSource layer(const LayerArgument& given) {
    const auto& [qkv, out, expand, contract, norm1, norm2] = given;
    return {dense(qkv), dense(out), dense(expand), dense(contract), norm(norm1), norm(norm2)};
}

TokenSource token_source(const TokenArgument& given) {
    const auto& [embeddings, positions, start, output, levels, max_length, head, choices, lowest] =
        given;
    TokenSource source{{}, at<const float>(positions), at<const float>(start), dense(output), levels,
                       max_length, choices, static_cast<Head>(head), lowest};
    for (Address table : embeddings) source.embeddings.push_back(at<const float>(table));
    return source;
}

DecoderShape decoder_shape(const ShapeArgument& given) {
    const auto& [format, heads, head_dim, hidden, map, eps, norm_first, activation] = given;
    return {static_cast<WeightFormat>(format), heads, head_dim, hidden, static_cast<FeatureMap>(map),
            eps, norm_first, static_cast<Activation>(activation)};
}

std::unique_ptr<PackedDecoder> make(const ShapeArgument& shape,
                                    const std::vector<LayerArgument>& layers,
                                    const NormArgument& last,
                                    const std::optional<TokenArgument>& tokens, int threads) {
    std::vector<LayerSource> sources;
    for (const LayerArgument& given : layers) sources.push_back(layer(given));
    const TokenSource entry = tokens ? token_source(*tokens) : TokenSource{};
    const py::gil_scoped_release released;
    return std::make_unique<PackedDecoder>(decoder_shape(shape), sources, norm(last),
                                           tokens ? &entry : nullptr, threads);
}

void run(const PackedDecoder& decoder, std::int64_t batch, std::int64_t inputs, Address lengths,
         Address first, std::int64_t position, bool begins, Address given,
         const std::vector<Address>& states, Address outputs, Address waits, Address uniform,
         float temperature, Address drawn, int threads) {
    std::vector<float*> s, z;
    for (std::size_t i = 0; i < states.size(); i += 2) {
        s.push_back(at<float>(states[i]));
        z.push_back(at<float>(states[i + 1]));
    }
    using Integers = const std::int64_t;
    const DecoderCall call{batch, inputs, at<Integers>(lengths), at<Integers>(first), position, begins,
                           at<Integers>(given), at<const float>(given), s.data(), z.data(),
                           at<float>(outputs), at<const float>(waits), at<const float>(uniform),
                           temperature, at<std::int64_t>(drawn), threads};
    const py::gil_scoped_release released;
    decoder.run(call);
}

}  // namespace

void register_decoder(py::module_& module) {
    py::class_<PackedDecoder>(module, "Decoder", py::module_local())
        .def(py::init(&make))
        .def("run", &run)
        .def_property_readonly("instruction_set", &PackedDecoder::instruction_set)
        .def_property_readonly("nbytes", &PackedDecoder::nbytes);
}

}  // namespace linattn
