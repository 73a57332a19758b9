#include "library/model_file.hpp"

#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace linattn {

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 31;  // of any size: products of two fit into 64 bits
constexpr std::int64_t kMostWindow = 1 << 20;          // as in linattn_models.attention.config
constexpr std::int64_t kMostInt8Inputs = 65'536;       // for so many, sums of products of 8 by 8 bits fit into 32 bits

float from_bfloat16(const char* at) {
    std::uint16_t half;
    std::memcpy(&half, at, 2);
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Rounded again, the result gives the same levels: see linattn_models.weights.fewer_bits.
std::vector<float> from_levels(const FileTensor& matrix, const float* largest) {
    const std::int64_t outputs = matrix.shape[0], inputs = matrix.shape[1];
    const auto* level = reinterpret_cast<const std::int8_t*>(matrix.data);
    std::vector<float> weights(static_cast<std::size_t>(outputs * inputs));
    float* to = weights.data();
    for (std::int64_t output = 0; output < outputs; ++output) {
        const float scale = largest[output] / 127.0f;
        for (std::int64_t i = 0; i < inputs; ++i, ++level) {
            *to++ = *level == 127    ? largest[output]
                    : *level == -127 ? -largest[output]
                                     : static_cast<float>(*level) * scale;
        }
    }
    return weights;
}

}  // namespace

ModelFile::ModelFile(const void* bytes, std::int64_t size) : content(read_tensors(bytes, size)) {
    if (text("format") != "linattn decoder")
        throw refused("the file", "a model of export_decoder", "another kind of file");
    if (text("version") != "1") throw refused("the file", "version 1", "version " + text("version"));
    const std::vector<std::string> formats{"float32", "bfloat16", "int8"}, maps{"identity", "relu", "elu", "hedgehog"},
        activations{"relu", "gelu", "gelu_tanh", "silu"}, yes_or_no{"false", "true"};
    source.format = static_cast<WeightFormat>(one_of("weights", formats));
    learns_map_ = text("feature_map") == "hedgehog";
    source.map = learns_map_ ? FeatureMap::identity : static_cast<FeatureMap>(one_of("feature_map", maps));
    source.activation = static_cast<Activation>(one_of("activation", activations));
    source.norm_first = one_of("norm_first", yes_or_no) == 1;
    source.gated = one_of("gated", yes_or_no) == 1;
    source.heads = integer("num_heads", 1, kMost);
    source.kv_heads = integer("num_kv_heads", 1, source.heads);
    source.head_dim = integer("head_dim", 1, kMost);
    source.hidden = integer("hidden", 1, source.format == WeightFormat::int8 ? kMostInt8Inputs : kMost);
    source.window = integer("window_size", 0, kMostWindow);
    source.eps = static_cast<float>(number("eps", 0));
    const std::int64_t embed = source.heads * source.head_dim;
    if (source.heads % source.kv_heads != 0)
        throw refused("num_kv_heads", "a divisor of num_heads", text("num_kv_heads"));
    if (embed > kMost || (source.format == WeightFormat::int8 && embed > kMostInt8Inputs)) {
        throw refused("the width", "a smaller one", std::to_string(embed));
    }
    source.features = integer("num_features", 1, kMost);
    if (learns_map_ ? source.features % 2 != 0 : source.features != source.head_dim)
        throw refused("num_features", "an even number for hedgehog, else head_dim", text("num_features"));
    if (one_of("rotary", yes_or_no) == 1) read_frequencies();
    source.norm = norm("norm");
    const std::int64_t layers = integer("num_layers", 1, static_cast<std::int64_t>(content.tensors.size()));
    for (std::int64_t i = 0; i < layers; ++i) source.layers.push_back(layer("layers." + std::to_string(i) + "."));
    if (one_of("tokens", yes_or_no) == 1) source.tokens = tokens();
    check_names();
}

std::string ModelFile::text(const std::string& name) const {
    const auto found = content.metadata.find(name);
    return found == content.metadata.end() ? "" : found->second;
}

std::int64_t ModelFile::integer(const std::string& name, std::int64_t low, std::int64_t high) const {
    const std::string given = text(name);
    const bool digits =
        !given.empty() && given.size() < 16 && given.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t value = digits ? std::strtoll(given.c_str(), nullptr, 10) : -1;
    if (value < low || value > high) {
        throw refused(name, "a whole number in " + std::to_string(low) + ".." + std::to_string(high),
                      "'" + given + "'");
    }
    return value;
}

double ModelFile::number(const std::string& name, double low) const {
    std::string given = text(name);
    std::replace(given.begin(), given.end(), '.', *std::localeconv()->decimal_point);  // which strtod expects
    char* end = nullptr;
    const double value = std::strtod(given.c_str(), &end);
    const bool fits = !given.empty() && *end == '\0' && value >= low && value <= std::numeric_limits<float>::max();
    if (!fits) throw refused(name, "a number" + std::string(low < 0 ? "" : " that is not negative"), "'" + given + "'");
    return value;
}

int ModelFile::one_of(const std::string& name, const std::vector<std::string>& known) const {
    const std::string given = text(name);
    std::string names;
    for (std::size_t i = 0; i < known.size(); ++i) {
        if (given == known[i]) return static_cast<int>(i);
        names += (i ? ", " : "") + known[i];
    }
    throw refused(name, "one of " + names, "'" + given + "'");
}

const FileTensor& ModelFile::tensor(const std::string& name, const Shape& shape) const {
    const auto found = content.tensors.find(name);
    if (found == content.tensors.end()) throw refused("the file", "a tensor '" + name + "'", "none");
    const FileTensor& tensor = found->second;
    if (tensor.shape != shape) throw refused("'" + name + "'", "shape " + in_words(shape), in_words(tensor.shape));
    used_.insert(name);
    return tensor;
}

const float* ModelFile::floats(const std::string& name, const Shape& shape) const {
    const FileTensor& found = tensor(name, shape);
    if (found.dtype != "F32") throw refused("'" + name + "'", "F32", found.dtype);
    return reinterpret_cast<const float*>(found.data);
}

const float* ModelFile::optional(const std::string& name, const Shape& shape) const {
    return content.tensors.count(name) ? floats(name, shape) : nullptr;
}

AffineSource ModelFile::affine(const std::string& name, std::int64_t inputs, std::int64_t outputs) const {
    const FileTensor& weight = tensor(name + ".weight", {outputs, inputs});
    AffineSource affine{{nullptr, 1, inputs}, inputs, outputs, optional(name + ".bias", {outputs}), nullptr};
    if (weight.dtype == "F32") {
        affine.weight.data = reinterpret_cast<const float*>(weight.data);
    } else if (weight.dtype == "BF16") {
        affine.load = [&weight] {
            std::vector<float> weights(static_cast<std::size_t>(weight.bytes / 2));
            for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = from_bfloat16(weight.data + 2 * i);
            return weights;
        };
    } else if (weight.dtype == "I8") {
        const float* const largest = floats(name + ".weight.largest", {outputs});
        affine.load = [&weight, largest] { return from_levels(weight, largest); };
    } else {
        throw refused("'" + name + ".weight'", "F32, BF16 or I8", weight.dtype);
    }
    return affine;
}

NormWeights ModelFile::norm(const std::string& name) const {
    const Shape shape{source.heads * source.head_dim};
    const bool centered = one_of("norm_kind", {"RMSNorm", "LayerNorm"}) == 1;
    return {floats(name + ".weight", shape), optional(name + ".bias", shape), static_cast<float>(number("norm_eps", 0)),
            centered};
}

// Of rotary positions.
void ModelFile::read_frequencies() {
    if (source.head_dim % 2 != 0) throw refused("head_dim", "an even number", text("head_dim"));
    const FileTensor& found = tensor("rotary_frequencies", {source.head_dim / 2});
    if (found.dtype != "F64") throw refused("'rotary_frequencies'", "F64", found.dtype);
    const auto* const numbers = reinterpret_cast<const double*>(found.data);
    source.frequencies.assign(numbers, numbers + source.head_dim / 2);
}

LayerSource ModelFile::layer(const std::string& name) {
    const std::int64_t embed = source.heads * source.head_dim, hidden = source.hidden;
    LayerSource layer;
    layer.qkv = affine(name + "qkv", embed, embed + 2 * source.kv_heads * source.head_dim);
    layer.out = affine(name + "out", embed, embed);
    layer.expand = affine(name + "expand", embed, hidden);
    layer.contract = affine(name + "contract", hidden, embed);
    if (source.gated) layer.gate = affine(name + "gate", embed, hidden);
    layer.norm1 = norm(name + "norm1");
    layer.norm2 = norm(name + "norm2");
    layer.decay_weight = optional(name + "decay_weight", {source.kv_heads, embed});
    if (!source.layers.empty() && (layer.decay_weight == nullptr) != (source.layers[0].decay_weight == nullptr)) {
        throw refused("decay_weight", "one in all layers or in none", "some layers with one");
    }
    if (layer.decay_weight != nullptr) {
        layer.decay_logits = floats(name + "decay_logits", {source.kv_heads});
    } else {
        layer.decay_logits = optional(name + "decay_logits", {source.kv_heads});
    }
    if (source.window > 0) layer.log_gamma = floats(name + "log_gamma", {source.heads});
    if (learns_map_) {
        layer.query_map = floats(name + "query_map", {source.heads, source.head_dim, source.features / 2});
        layer.key_map = floats(name + "key_map", {source.kv_heads, source.head_dim, source.features / 2});
    }
    return layer;
}

TokenSource ModelFile::tokens() {
    const std::int64_t embed = source.heads * source.head_dim;
    TokenSource tokens{};
    tokens.levels = integer("levels", 1, kMost);
    const std::int64_t channels = integer("channels", 1, 3);
    for (std::int64_t c = 0; c < channels; ++c) {
        tokens.embeddings.push_back(floats("tokens.embeddings." + std::to_string(c), {tokens.levels, embed}));
    }
    tokens.start = optional("tokens.start", {embed});
    has_start = tokens.start != nullptr;
    tokens.max_length = integer("max_length", 0, kMost);
    tokens.positions = tokens.max_length > 0 ? floats("tokens.positions", {tokens.max_length, embed}) : nullptr;
    tokens.head = static_cast<Head>(one_of("head", {"none", "categorical", "mixture_of_logistics"}));
    const std::int64_t parameters = integer("parameters", 1, kMost);
    tokens.output = affine("tokens.output", embed, parameters);
    if (tokens.head == Head::none) return tokens;
    tokens.choices = integer("choices", 1, kMost);
    const bool is_mixture = tokens.head == Head::mixture_of_logistics;
    tokens.lowest_log_scale = is_mixture ? static_cast<float>(number("lowest_log_scale", -1e30)) : 0;
    const std::int64_t groups = is_mixture ? 1 + 2 * channels + (channels == 3 ? 3 : 0) : 1;
    const bool fits = is_mixture ? channels != 2 : channels == 1 && tokens.choices == tokens.levels;
    if (!fits || parameters != groups * tokens.choices) {
        throw refused("the head", std::to_string(groups) + " numbers for each choice",
                      std::to_string(parameters) + " for " + std::to_string(tokens.choices) + " choices of " +
                          std::to_string(channels) + " channels");
    }
    return tokens;
}

// A tensor that nothing reads would change what the file means.
void ModelFile::check_names() const {
    for (const auto& each : content.tensors) {
        if (!used_.count(each.first)) throw refused("the file", "tensors that a decoder knows", "'" + each.first + "'");
    }
}

}  // namespace linattn
