// Decoders for Python, which checks tensors and passes their addresses by name.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cores.hpp"
#include "packed_decoder.hpp"

namespace py = pybind11;

namespace linattn {

namespace {

using Address = std::uintptr_t;
using py::arg;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

const float* floats(Address address) { return at<const float>(address); }
const std::int64_t* integers(Address address) { return at<const std::int64_t>(address); }

AffineSource affine(Address weight, std::int64_t input_stride, std::int64_t output_stride, std::int64_t inputs,
                    std::int64_t outputs, Address bias) {
    return {{floats(weight), input_stride, output_stride}, inputs, outputs, floats(bias)};
}

NormWeights norm(Address weight, Address bias, float eps) { return {floats(weight), floats(bias), eps}; }

LayerSource layer(const AffineSource& qkv, const AffineSource& out, const AffineSource& expand,
                  const AffineSource& contract, const NormWeights& norm1, const NormWeights& norm2) {
    return {qkv, out, expand, contract, norm1, norm2};
}

TokenSource tokens(const std::vector<Address>& embeddings, Address positions, Address start, const AffineSource& output,
                   std::int64_t levels, std::int64_t max_length, Head head, std::int64_t choices,
                   float lowest_log_scale) {
    TokenSource source{
        {levels, max_length, head, choices, lowest_log_scale}, {}, floats(positions), floats(start), output};
    for (Address table : embeddings) source.embeddings.push_back(floats(table));
    return source;
}

ModelSource model(WeightFormat format, std::int64_t heads, std::int64_t head_dim, std::int64_t hidden, FeatureMap map,
                  float eps, bool norm_first, Activation activation, const std::vector<LayerSource>& layers,
                  const NormWeights& norm, const std::optional<TokenSource>& tokens) {
    return {{format, heads, head_dim, hidden, map, eps, norm_first, activation}, layers, norm, tokens};
}

void run(const PackedDecoder& decoder, std::int64_t batch, std::int64_t length, Address lengths, Address positions,
         std::int64_t position, bool begins, Address inputs, const std::vector<Address>& states, Address outputs,
         Address waits, Address uniform, float temperature, Address drawn, int threads) {
    std::vector<float*> s, z;
    for (std::size_t i = 0; i < states.size(); i += 2) {
        s.push_back(at<float>(states[i]));
        z.push_back(at<float>(states[i + 1]));
    }
    const DecoderCall call{batch,           length,      integers(lengths),       integers(positions),
                           position,        begins,      integers(inputs),        floats(inputs),
                           s.data(),        z.data(),    at<float>(outputs),      floats(waits),
                           floats(uniform), temperature, at<std::int64_t>(drawn), threads};
    const py::gil_scoped_release released;
    decoder.run(call);
}

void register_enums(py::module_& module) {
    // By the names that linattn_core gives them.
    py::enum_<WeightFormat>(module, "WeightFormat")
        .value("float32", WeightFormat::float32)
        .value("bfloat16", WeightFormat::bfloat16)
        .value("int8", WeightFormat::int8);
    py::enum_<Activation>(module, "Activation").value("relu", Activation::relu).value("gelu", Activation::gelu);
    py::enum_<Head>(module, "Head")
        .value("none", Head::none)
        .value("categorical", Head::categorical)
        .value("mixture_of_logistics", Head::mixture_of_logistics);
}

}  // namespace

void register_decoder(py::module_& module) {
    register_enums(module);
    const py::kw_only by_name;
    py::class_<AffineSource>(module, "Affine", py::module_local())
        .def(py::init(&affine), by_name, arg("weight"), arg("input_stride"), arg("output_stride"), arg("inputs"),
             arg("outputs"), arg("bias"));
    py::class_<NormWeights>(module, "Norm", py::module_local())
        .def(py::init(&norm), by_name, arg("weight"), arg("bias"), arg("eps"));
    py::class_<LayerSource>(module, "Layer", py::module_local())
        .def(py::init(&layer), by_name, arg("qkv"), arg("out"), arg("expand"), arg("contract"), arg("norm1"),
             arg("norm2"));
    py::class_<TokenSource>(module, "Tokens", py::module_local())
        .def(py::init(&tokens), by_name, arg("embeddings"), arg("positions"), arg("start"), arg("output"),
             arg("levels"), arg("max_length"), arg("head"), arg("choices"), arg("lowest_log_scale"));
    py::class_<ModelSource>(module, "Model", py::module_local())
        .def(py::init(&model), by_name, arg("format"), arg("heads"), arg("head_dim"), arg("hidden"), arg("map"),
             arg("eps"), arg("norm_first"), arg("activation"), arg("layers"), arg("norm"), arg("tokens"));
    py::class_<PackedDecoder>(module, "Decoder", py::module_local())
        .def(py::init<const ModelSource&, int>(), py::call_guard<py::gil_scoped_release>(), arg("model"),
             arg("threads"))
        .def("run", &run, by_name, arg("batch"), arg("length"), arg("lengths"), arg("positions"), arg("position"),
             arg("begins"), arg("inputs"), arg("states"), arg("outputs"), arg("waits"), arg("uniform"),
             arg("temperature"), arg("drawn"), arg("threads"))
        .def_property_readonly("instruction_set", &PackedDecoder::instruction_set)
        .def_property_readonly("nbytes", &PackedDecoder::nbytes);
    module.def("available_cores", &available_cores);
    module.def("team_size", &team_size, arg("threads"));
}

}  // namespace linattn
