#include "library/model_file.hpp"

#include <algorithm>
#include <charconv>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>

namespace linattn {

namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 31;  // of any size: products of two fit into 64 bits
constexpr std::int64_t kMostWindow = 1 << 20;          // as in linattn_models.attention.config
constexpr std::int64_t kMostInt8Inputs = 65'536;       // for so many, sums of products of 8 by 8 bits fit into 32 bits

std::vector<float> from_bfloat16(const char* halves, std::int64_t count) {
    std::vector<float> weights(static_cast<std::size_t>(count));
    for (float& weight : weights) {
        std::uint16_t half;
        std::memcpy(&half, halves, 2);
        const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
        std::memcpy(&weight, &bits, 4);
        halves += 2;
    }
    return weights;
}

// Rounded again, the result gives the same levels: see linattn_models.weights.fewer_bits.
std::vector<float> from_levels(const char* levels, const float* largest, std::int64_t outputs, std::int64_t inputs) {
    std::vector<float> weights(static_cast<std::size_t>(outputs * inputs));
    float* to = weights.data();
    for (std::int64_t output = 0; output < outputs; ++output) {
        const float most = largest[output], scale = most / 127.0f;
        for (std::int64_t i = 0; i < inputs; ++i) {
            const auto level = static_cast<std::int8_t>(*levels++);
            *to++ = level == 127 ? most : level == -127 ? -most : static_cast<float>(level) * scale;
        }
    }
    return weights;
}

class Reader {
public:
    explicit Reader(const TensorFile& file) : file_(file) {}

    ModelSource model() {
        if (text("format") != "linattn decoder")
            throw refused("the file", "a model of export_decoder", "another kind of file");
        if (text("version") != "1") throw refused("the file", "version 1", "version " + text("version"));
        read_settings();
        source_.norm = norm("norm");
        const std::int64_t layers = integer("num_layers", 1, static_cast<std::int64_t>(file_.tensors.size()));
        for (std::int64_t i = 0; i < layers; ++i) source_.layers.push_back(layer("layers." + std::to_string(i) + "."));
        if (flag("tokens")) source_.tokens = tokens();
        for (const auto& [name, tensor] : file_.tensors) {  // one that nothing reads would change what the file means
            if (!used_.count(name)) throw refused("the file", "tensors that a decoder knows", "'" + name + "'");
        }
        return std::move(source_);
    }

private:
    const std::string& text(const std::string& name) const { return find_text(file_.metadata, name); }

    std::int64_t integer(const std::string& name, std::int64_t low, std::int64_t high) const {
        const std::string& digits = text(name);
        const char* const last = digits.data() + digits.size();
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(digits.data(), last, value);
        if (error != std::errc() || end != last || value < low || value > high) {
            throw refused(name, "a whole number in " + std::to_string(low) + ".." + std::to_string(high),
                          "'" + digits + "'");
        }
        return value;
    }

    float number(const std::string& name, double low) const {
        std::string digits = text(name);
        std::replace(digits.begin(), digits.end(), '.', *std::localeconv()->decimal_point);  // which strtod expects
        char* end = nullptr;
        const double value = std::strtod(digits.c_str(), &end);
        if (digits.empty() || *end != '\0' || !(value >= low && value <= std::numeric_limits<float>::max())) {
            throw refused(name, low < 0 ? "a number" : "a number that is not negative", "'" + digits + "'");
        }
        return static_cast<float>(value);
    }

    // The place of a text among those that are known.
    template <class Choice>
    Choice one_of(const std::string& name, const std::vector<std::string>& known) const {
        const auto place = std::find(known.begin(), known.end(), text(name));
        if (place != known.end()) return static_cast<Choice>(place - known.begin());
        std::string names;
        for (const std::string& each : known) names += (names.empty() ? "" : ", ") + each;
        throw refused(name, "one of " + names, "'" + text(name) + "'");
    }

    bool learns_map() const { return text("feature_map") == "hedgehog"; }
    bool flag(const std::string& name) const { return one_of<bool>(name, {"false", "true"}); }

    const char* tensor(const std::string& name, const char* dtype, const Shape& shape) {
        used_.insert(name);
        return find_tensor(file_, name, dtype, shape).data;
    }

    const float* floats(const std::string& name, const Shape& shape) {
        return reinterpret_cast<const float*>(tensor(name, "F32", shape));
    }

    const float* optional(const std::string& name, const Shape& shape) {
        return file_.tensors.count(name) ? floats(name, shape) : nullptr;
    }

    void read_settings() {
        source_.format = one_of<WeightFormat>("weights", {"float32", "bfloat16", "int8"});
        source_.map = one_of<FeatureMap>("feature_map", {"identity", "relu", "elu", "hedgehog"});
        if (learns_map()) source_.map = FeatureMap::identity;  // with maps of layers
        source_.activation = one_of<Activation>("activation", {"relu", "gelu", "gelu_tanh", "silu"});
        source_.norm_first = flag("norm_first");
        source_.gated = flag("gated");
        source_.heads = integer("num_heads", 1, kMost);
        source_.kv_heads = integer("num_kv_heads", 1, source_.heads);
        source_.head_dim = integer("head_dim", 1, kMost);
        const std::int64_t widest = source_.format == WeightFormat::int8 ? kMostInt8Inputs : kMost;
        source_.hidden = integer("hidden", 1, widest);
        source_.window = integer("window_size", 0, kMostWindow);
        source_.eps = number("eps", 0);
        embed_ = source_.heads * source_.head_dim;
        if (source_.heads % source_.kv_heads != 0)
            throw refused("num_kv_heads", "a divisor of num_heads", text("num_kv_heads"));
        if (embed_ > widest) throw refused("the width", "a smaller one", std::to_string(embed_));
        source_.features = integer("num_features", 1, kMost);
        if (learns_map() ? source_.features % 2 != 0 : source_.features != source_.head_dim)
            throw refused("num_features", "an even number for hedgehog, else head_dim", text("num_features"));
        if (!flag("rotary")) return;
        if (source_.head_dim % 2 != 0) throw refused("head_dim", "an even number", text("head_dim"));
        const std::int64_t pairs = source_.head_dim / 2;
        const auto* const turns = reinterpret_cast<const double*>(tensor("rotary_frequencies", "F64", {pairs}));
        source_.frequencies.assign(turns, turns + pairs);
    }

    AffineSource affine(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
        const std::string matrix = name + ".weight";
        const Shape shape{outputs, inputs};
        AffineSource affine{{nullptr, 1, inputs}, inputs, outputs, optional(name + ".bias", {outputs}), nullptr};
        if (source_.format == WeightFormat::float32) {
            affine.weight.data = floats(matrix, shape);
        } else if (source_.format == WeightFormat::bfloat16) {
            affine.load = [=, halves = tensor(matrix, "BF16", shape)] {
                return from_bfloat16(halves, outputs * inputs);
            };
        } else {
            affine.load = [=, levels = tensor(matrix, "I8", shape), largest = floats(matrix + ".largest", {outputs})] {
                return from_levels(levels, largest, outputs, inputs);
            };
        }
        return affine;
    }

    NormWeights norm(const std::string& name) {
        return {floats(name + ".weight", {embed_}), optional(name + ".bias", {embed_}), number("norm_eps", 0),
                one_of<bool>("norm_kind", {"RMSNorm", "LayerNorm"})};
    }

    LayerSource layer(const std::string& name) {
        const std::int64_t dim = source_.head_dim, kv_heads = source_.kv_heads, half = source_.features / 2;
        LayerSource layer;
        layer.qkv = affine(name + "qkv", embed_, embed_ + 2 * kv_heads * dim);
        layer.out = affine(name + "out", embed_, embed_);
        layer.expand = affine(name + "expand", embed_, source_.hidden);
        layer.contract = affine(name + "contract", source_.hidden, embed_);
        if (source_.gated) layer.gate = affine(name + "gate", embed_, source_.hidden);
        layer.norm1 = norm(name + "norm1");
        layer.norm2 = norm(name + "norm2");
        layer.decay_weight = optional(name + "decay_weight", {kv_heads, embed_});
        layer.decay_logits = layer.decay_weight == nullptr ? optional(name + "decay_logits", {kv_heads})
                                                           : floats(name + "decay_logits", {kv_heads});
        const LayerSource& first = source_.layers.empty() ? layer : source_.layers[0];
        if ((layer.decay_weight == nullptr) != (first.decay_weight == nullptr))
            throw refused("decay_weight", "one in all layers or in none", "some layers with one");
        if (source_.window > 0) layer.log_gamma = floats(name + "log_gamma", {source_.heads});
        if (learns_map()) {
            layer.query_map = floats(name + "query_map", {source_.heads, dim, half});
            layer.key_map = floats(name + "key_map", {kv_heads, dim, half});
        }
        return layer;
    }

    TokenSource tokens() {
        TokenSource tokens{};
        tokens.levels = integer("levels", 1, kMost);
        const std::int64_t channels = integer("channels", 1, 3);
        for (std::int64_t c = 0; c < channels; ++c)
            tokens.embeddings.push_back(floats("tokens.embeddings." + std::to_string(c), {tokens.levels, embed_}));
        tokens.start = optional("tokens.start", {embed_});
        tokens.max_length = integer("max_length", 0, kMost);
        if (tokens.max_length > 0) tokens.positions = floats("tokens.positions", {tokens.max_length, embed_});
        tokens.head = one_of<Head>("head", {"none", "categorical", "mixture_of_logistics"});
        const std::int64_t parameters = integer("parameters", 1, kMost);
        tokens.output = affine("tokens.output", embed_, parameters);
        if (tokens.head == Head::none) return tokens;
        tokens.choices = integer("choices", 1, kMost);
        const bool is_mixture = tokens.head == Head::mixture_of_logistics;
        if (is_mixture) tokens.lowest_log_scale = number("lowest_log_scale", -1e30);
        const std::int64_t groups = is_mixture ? 1 + 2 * channels + (channels == 3 ? 3 : 0) : 1;
        const bool fits = is_mixture ? channels != 2 : channels == 1 && tokens.choices == tokens.levels;
        if (!fits || parameters != groups * tokens.choices) {
            throw refused("the head", std::to_string(groups) + " numbers for each choice",
                          std::to_string(parameters) + " for " + std::to_string(tokens.choices) + " choices of " +
                              std::to_string(channels) + " channels");
        }
        return tokens;
    }

    const TensorFile& file_;
    ModelSource source_;
    std::int64_t embed_ = 0;
    std::set<std::string> used_;
};

}  // namespace

ModelSource read_model(const TensorFile& file) { return Reader(file).model(); }

}  // namespace linattn
