// The Python bindings of compiled decoders; they fill structs from dicts, as in register_attention.cpp. Python has
// checked the tensors.
#include <pybind11/pybind11.h>

#include "cores.hpp"
#include "packed_decoder.hpp"
#include "seam/fields.hpp"

namespace py = pybind11;

namespace linattn {

// These overloads are not in an unnamed namespace, where `load` of a std::vector would not find them.

// Address, strides of inputs and outputs.
static void load(MatrixSource& field, PyObject* value) {
    PyObject** x = numbers(value, 3);
    load(field.data, x[0]), load(field.input_stride, x[1]), load(field.output_stride, x[2]);
}

template <class Struct, class... Tables>
static void load_struct(Struct& field, PyObject* value, const Tables&... tables) {
    field = filled<Struct>(py::handle(value).cast<py::dict>(), tables...);
}

static void load(AffineSource& field, PyObject* value) {
    static const FieldTable<AffineSource> table{
        {"weight", set<&AffineSource::weight>},
        {"inputs", set<&AffineSource::inputs>},
        {"outputs", set<&AffineSource::outputs>},
        {"bias", set<&AffineSource::bias>},
    };
    load_struct(field, value, table);
}

static void load(NormWeights& field, PyObject* value) {
    static const FieldTable<NormWeights> table{
        {"weight", set<&NormWeights::weight>},
        {"bias", set<&NormWeights::bias>},
        {"eps", set<&NormWeights::eps>},
        {"centered", set<&NormWeights::centered>},
    };
    load_struct(field, value, table);
}

static void load(LayerSource& field, PyObject* value) {
    static const FieldTable<LayerSource> table{
        {"qkv", set<&LayerSource::qkv>},
        {"out", set<&LayerSource::out>},
        {"expand", set<&LayerSource::expand>},
        {"contract", set<&LayerSource::contract>},
        {"gate", set<&LayerSource::gate>},
        {"decay_logits", set<&LayerSource::decay_logits>},
        {"decay_weight", set<&LayerSource::decay_weight>},
        {"log_gamma", set<&LayerSource::log_gamma>},
        {"query_map", set<&LayerSource::query_map>},
        {"key_map", set<&LayerSource::key_map>},
        {"norm1", set<&LayerSource::norm1>},
        {"norm2", set<&LayerSource::norm2>},
    };
    load_struct(field, value, table);
}

static void load(TokenSource& field, PyObject* value) {
    static const FieldTable<TokenSource> table{
        {"embeddings", set<&TokenSource::embeddings>},
        {"positions", set<&TokenSource::positions>},
        {"start", set<&TokenSource::start>},
        {"output", set<&TokenSource::output>},
        {"levels", set<&TokenSource::levels>},
        {"max_length", set<&TokenSource::max_length>},
        {"head", set<&TokenSource::head>},
        {"choices", set<&TokenSource::choices>},
        {"lowest_log_scale", set<&TokenSource::lowest_log_scale>},
    };
    load_struct(field, value, table);
}

static void load(ModelSource& field, PyObject* value) {
    static const FieldTable<ModelSource> table{
        {"format", set<&ModelSource::format>},
        {"heads", set<&ModelSource::heads>},
        {"kv_heads", set<&ModelSource::kv_heads>},
        {"head_dim", set<&ModelSource::head_dim>},
        {"hidden", set<&ModelSource::hidden>},
        {"features", set<&ModelSource::features>},
        {"map", set<&ModelSource::map>},
        {"eps", set<&ModelSource::eps>},
        {"norm_first", set<&ModelSource::norm_first>},
        {"activation", set<&ModelSource::activation>},
        {"gated", set<&ModelSource::gated>},
        {"window", set<&ModelSource::window>},
        {"frequencies", set<&ModelSource::frequencies>},
        {"layers", set<&ModelSource::layers>},
        {"norm", set<&ModelSource::norm>},
        {"tokens", set<&ModelSource::tokens>},
    };
    load_struct(field, value, table);
}

namespace {

// A call that also owns the lists of state addresses, which Python passes as lists.
struct ListedCall : DecoderCall {
    std::vector<float*> listed_s, listed_z, listed_keys, listed_values;
};

const FieldTable<ListedCall>& call_fields() {
    static const FieldTable<ListedCall> table{
        {"batch", set<&ListedCall::batch>},
        {"inputs", set<&ListedCall::inputs>},
        {"lengths", set<&ListedCall::lengths>},
        {"positions", set<&ListedCall::positions>},
        {"position", set<&ListedCall::position>},
        {"begins", set<&ListedCall::begins>},
        {"tokens", set<&ListedCall::tokens>},
        {"vectors", set<&ListedCall::vectors>},
        {"s", set<&ListedCall::listed_s>},
        {"z", set<&ListedCall::listed_z>},
        {"keys", set<&ListedCall::listed_keys>},
        {"values", set<&ListedCall::listed_values>},
        {"outputs", set<&ListedCall::outputs>},
        {"quantiles", set<&ListedCall::quantiles>},
        {"temperatures", set<&ListedCall::temperatures>},
        {"top_ks", set<&ListedCall::top_ks>},
        {"top_ps", set<&ListedCall::top_ps>},
        {"min_ps", set<&ListedCall::min_ps>},
        {"drawn", set<&ListedCall::drawn>},
        {"steps", set<&ListedCall::steps>},
        {"threads", set<&ListedCall::threads>},
    };
    return table;
}

std::unique_ptr<PackedDecoder> packed(const py::dict& fields, int threads) {
    ModelSource model;
    load(model, fields.ptr());
    const py::gil_scoped_release released;
    return std::make_unique<PackedDecoder>(model, threads);
}

void run(const PackedDecoder& decoder, const py::dict& fields) {
    auto call = filled<ListedCall>(fields, call_fields());
    call.s = call.listed_s.data(), call.z = call.listed_z.data();
    call.keys = call.listed_keys.data(), call.values = call.listed_values.data();
    const py::gil_scoped_release released;
    decoder.run(call);
}

}  // namespace

void register_decoder(py::module_& module) {
    // The names are those of linattn_core.decoding.
    py::enum_<WeightFormat>(module, "WeightFormat")
        .value("float32", WeightFormat::float32)
        .value("bfloat16", WeightFormat::bfloat16)
        .value("int8", WeightFormat::int8);
    py::enum_<Activation>(module, "Activation")
        .value("relu", Activation::relu)
        .value("gelu", Activation::gelu)
        .value("gelu_tanh", Activation::gelu_tanh)
        .value("silu", Activation::silu);
    py::enum_<Head>(module, "Head")
        .value("none", Head::none)
        .value("categorical", Head::categorical)
        .value("mixture_of_logistics", Head::mixture_of_logistics);
    py::class_<PackedDecoder>(module, "Decoder", py::module_local())
        .def(py::init(&packed), py::arg("model"), py::arg("threads"))
        .def("run", &run, py::arg("call"))
        .def_property_readonly("instruction_set", &PackedDecoder::instruction_set)
        .def_property_readonly("nbytes", &PackedDecoder::nbytes);
    module.def("available_cores", &available_cores);
    module.def("team_size", &team_size, py::arg("threads"));
}

}  // namespace linattn
