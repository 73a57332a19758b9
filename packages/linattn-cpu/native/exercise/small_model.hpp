// A file of a small model with random weights, as linattn_models.export_decoder writes it.
#pragma once

#include <cmath>
#include <list>
#include <string>
#include <vector>

#include "exercise/tensors.hpp"
#include "library/tensor_file.hpp"

namespace linattn::exercise {

class SmallModel {
public:
    explicit SmallModel(Random& random) : random_(random) {
        const std::int64_t kv_heads = between(random, 1, 2), heads = kv_heads * between(random, 1, 2),
                           dim = between(random, 1, 5), embed = heads * dim, hidden = between(random, 1, 9),
                           layers = between(random, 1, 2), window = coin() * between(random, 1, 4),
                           half = between(random, 1, 3);
        const bool learned = coin(), gated = coin(), rotary = dim % 2 == 0 && coin(), decays = coin(),
                   decay_is_gated = decays && coin();
        set("format", "linattn decoder"), set("version", "1"), set("fingerprint", "0123456789abcdef");
        set("weights", one_of({"float32", "bfloat16", "int8"}));
        set("feature_map", learned ? "hedgehog" : one_of({"elu", "relu", "identity"}));
        set("activation", one_of({"relu", "gelu", "gelu_tanh", "silu"}));
        set("norm_kind", one_of({"LayerNorm", "RMSNorm"})), set("norm_eps", "1e-05"), set("eps", "1e-06");
        set("norm_first", coin()), set("gated", gated), set("rotary", rotary);
        set("num_heads", heads), set("num_kv_heads", kv_heads), set("head_dim", dim), set("hidden", hidden);
        set("num_features", learned ? 2 * half : dim), set("window_size", window), set("num_layers", layers);
        if (rotary) put("rotary_frequencies", {dim / 2}, "F64");
        norm("norm", embed);
        for (std::int64_t i = 0; i < layers; ++i) {
            const std::string layer = "layers." + std::to_string(i) + ".";
            affine(layer + "qkv", embed, embed + 2 * kv_heads * dim), affine(layer + "out", embed, embed);
            affine(layer + "expand", embed, hidden), affine(layer + "contract", hidden, embed);
            if (gated) affine(layer + "gate", embed, hidden);
            norm(layer + "norm1", embed), norm(layer + "norm2", embed);
            if (decays) put(layer + "decay_logits", {kv_heads});
            if (decay_is_gated) put(layer + "decay_weight", {kv_heads, embed});
            if (window > 0) put(layer + "log_gamma", {heads});
            if (learned) put(layer + "query_map", {heads, dim, half}), put(layer + "key_map", {kv_heads, dim, half});
        }
        const bool has_tokens = between(random, 0, 4) > 0;
        set("tokens", has_tokens);
        if (has_tokens) add_tokens(embed);
    }

    std::vector<char> file() const { return write_tensors(file_); }

private:
    void add_tokens(std::int64_t embed) {
        const bool is_mixture = coin(), draws = between(random_, 0, 4) > 0;
        const std::int64_t levels = between(random_, 2, 12), choices = is_mixture ? between(random_, 1, 3) : levels,
                           channels = is_mixture && coin() ? 3 : 1, places = coin() * between(random_, 6, 12),
                           groups = is_mixture ? channels * 3 + (channels == 1 ? 0 : 1) : 1;
        set("levels", levels), set("channels", channels), set("choices", choices), set("max_length", places);
        set("head", !draws ? "none" : is_mixture ? "mixture_of_logistics" : "categorical");
        set("parameters", groups * choices), set("lowest_log_scale", "-7.0");
        for (std::int64_t c = 0; c < channels; ++c) put("tokens.embeddings." + std::to_string(c), {levels, embed});
        if (coin()) put("tokens.start", {embed});
        if (places > 0) put("tokens.positions", {places, embed});
        affine("tokens.output", embed, groups * choices);
        if (channels > 1 || levels != 3 || !coin()) return;
        set("tokenizer", "characters"), set("characters", "a\u00e9\n");
    }

    void affine(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
        const std::string weights = file_.metadata["weights"];
        put(name + ".weight", {outputs, inputs}, weights == "int8" ? "I8" : weights == "bfloat16" ? "BF16" : "F32");
        if (weights == "int8") put(name + ".weight.largest", {outputs});
        if (coin()) put(name + ".bias", {outputs});
    }

    void norm(const std::string& name, std::int64_t embed) {
        put(name + ".weight", {embed});
        if (coin()) put(name + ".bias", {embed});
    }

    void put(const std::string& name, const Shape& shape, const std::string& dtype = "F32") {
        std::int64_t count = 1;
        for (const std::int64_t dim : shape) count *= dim;
        std::vector<char> bytes;
        std::normal_distribution<float> draw(0.0f, 0.5f);
        for (std::int64_t i = 0; i < count; ++i) {
            const float x = draw(random_);
            const double wide = x;
            const char level = static_cast<char>(between(random_, -127, 127)), *first = &level, *last = &level + 1;
            if (dtype == "F32") first = reinterpret_cast<const char*>(&x), last = first + 4;
            if (dtype == "BF16") first = reinterpret_cast<const char*>(&x) + 2, last = first + 2;  // the upper half
            if (dtype == "F64") first = reinterpret_cast<const char*>(&wide), last = first + 8;
            bytes.insert(bytes.end(), first, last);
        }
        weights_.push_back(std::move(bytes));
        file_.tensors[name] = {dtype, shape, weights_.back().data(), static_cast<std::int64_t>(weights_.back().size())};
    }

    void set(const std::string& name, const std::string& value) { file_.metadata[name] = value; }
    void set(const std::string& name, const char* value) { file_.metadata[name] = value; }
    void set(const std::string& name, bool value) { file_.metadata[name] = value ? "true" : "false"; }
    void set(const std::string& name, std::int64_t value) { file_.metadata[name] = std::to_string(value); }

    std::string one_of(const std::vector<std::string>& several) {
        return several[static_cast<std::size_t>(between(random_, 0, static_cast<std::int64_t>(several.size()) - 1))];
    }

    bool coin() { return between(random_, 0, 1) == 1; }

    Random& random_;
    TensorFile file_;
    std::list<std::vector<char>> weights_;
};

}  // namespace linattn::exercise
