// A small model with random weights, decoded with several threads and with one, and what filters let it draw.
#pragma once

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "exercise/tensors.hpp"
#include "packed_decoder.hpp"

namespace linattn::exercise {

// The settings of a draw: the temperature and the filters, some of them off.
struct Filters {
    double temperature;
    std::int64_t top_k;
    double top_p, min_p;

    explicit Filters(Random& random) : temperature(between(random, 1, 20) / 10.0) {
        std::uniform_real_distribution<double> unit(0.0, 1.0);
        top_k = between(random, 0, 1) * between(random, 1, 50);
        top_p = static_cast<double>(between(random, 0, 1)) * unit(random);
        min_p = static_cast<double>(between(random, 0, 1)) * unit(random);
    }

    // The definition for logits[token]; with a slack, some more tokens pass, with a negative one, some fewer.
    bool pass(const std::vector<float>& logits, std::size_t token, double slack) const {
        const double own = logits[token], largest = *std::max_element(logits.begin(), logits.end());
        if (own == largest) return true;
        double all = 0, larger = 0;
        for (const float logit : logits) {
            const double weight = std::exp((logit - largest) / temperature);
            all += is_top(logits, logit) ? weight : 0;
            larger += logit > own ? weight : 0;
        }
        return is_top(logits, logits[token]) && (top_p == 0 || larger < all * (top_p + slack)) &&
               (min_p == 0 || own > largest + temperature * std::log(min_p) - slack);
    }

private:
    bool is_top(const std::vector<float>& logits, float logit) const {
        const auto is_larger = [=](float other) { return other > logit; };
        return top_k == 0 || std::count_if(logits.begin(), logits.end(), is_larger) < top_k;
    }
};

// The same settings for each row of a call.
struct RowSettings {
    std::vector<double> temperatures, top_ps, min_ps;
    std::vector<std::int64_t> top_ks;

    RowSettings(const Filters& filters, std::size_t rows)
        : temperatures(rows, filters.temperature),
          top_ps(rows, filters.top_p),
          min_ps(rows, filters.min_p),
          top_ks(rows, filters.top_k) {}

    void set(DecoderCall& call) const {
        call.temperatures = temperatures.data(), call.top_ks = top_ks.data();
        call.top_ps = top_ps.data(), call.min_ps = min_ps.data();
    }
};

// Where the tokens of the last steps come from: the caller, the steps before, or the steps before in the same call.
enum class Tokens { given, drawn, drawn_in_one_call };

// The result of the last step: the parameters (B, levels), the random numbers (B, 4) and the tokens drawn.
struct Decoded {
    std::vector<float> parameters;
    std::vector<double> quantiles;
    std::vector<std::int64_t> drawn;

    // Whether row b's token passes the filters, and its part of the distribution function contains the row's number.
    bool is_drawn_right(std::size_t b, const Filters& filters) const {
        const std::size_t levels = parameters.size() / drawn.size();
        const auto first = parameters.begin() + static_cast<std::ptrdiff_t>(b * levels);
        const std::vector<float> logits(first, first + static_cast<std::ptrdiff_t>(levels));
        const auto token = static_cast<std::size_t>(drawn[b]);
        const double slack = 1e-4, largest = *std::max_element(logits.begin(), logits.end());
        // Sums of the tokens that pass for sure, and of those that may pass: before the token, up to it, and of all.
        double before = 0, up_to = 0, sure = 0, possible = 0;
        for (std::size_t i = 0; i < levels; ++i) {
            const double weight = std::exp((logits[i] - largest) / filters.temperature);
            const bool is_sure = filters.pass(logits, i, -slack), is_possible = filters.pass(logits, i, slack);
            sure += is_sure ? weight : 0, possible += is_possible ? weight : 0;
            before += is_sure && i < token ? weight : 0, up_to += is_possible && i <= token ? weight : 0;
        }
        const double quantile = quantiles[4 * b];
        return filters.pass(logits, token, slack) && before <= quantile * possible + slack &&
               up_to >= quantile * sure - slack;
    }
};

// Random weights in memory of exactly their size, and a decoder packed from them.
class RandomModel {
public:
    RandomModel(Random& random, WeightFormat format)
        : random_(random),
          kv_heads_(between(random, 1, 7)),
          head_dim_(between(random, 1, 19)),
          hidden_(between(random, 1, 70)),
          levels_(between(random, 2, 90)),
          features_(head_dim_) {
        const bool gated = coin(), rotary = head_dim_ % 2 == 0 && coin(), centered = coin();
        window_ = coin() ? between(random, 1, kLength) : 0;
        const bool decays = coin();
        gated_decay_ = decays && coin();
        const std::int64_t heads = kv_heads_ * between(random, 1, 3), e = heads * head_dim_;
        const bool learned = coin();
        if (learned) features_ = 2 * between(random, 1, 20);
        const std::int64_t map_numbers = head_dim_ * features_ / 2;
        const Activation ungated = coin() ? Activation::gelu : Activation::gelu_tanh;
        const Activation activation = gated ? Activation::silu : ungated;
        ModelSource model{};
        static_cast<DecoderShape&>(model) = {format,          heads, kv_heads_, head_dim_,  hidden_, features_,
                                             FeatureMap::elu, 1e-6f, coin(),    activation, gated,   window_};
        for (std::int64_t i = 0; rotary && i < head_dim_ / 2; ++i) model.frequencies.push_back(std::pow(0.1, i));
        model.norm = norm(e, centered);
        for (int i = 0; i < 2; ++i) {
            LayerSource layer{};
            layer.qkv = affine(e, e + 2 * kv_heads_ * head_dim_), layer.out = affine(e, e);
            layer.expand = affine(e, hidden_), layer.contract = affine(hidden_, e);
            if (gated) layer.gate = affine(e, hidden_);
            if (decays) layer.decay_logits = numbers(kv_heads_);
            if (gated_decay_) layer.decay_weight = numbers(kv_heads_ * e);
            if (window_ > 0) layer.log_gamma = numbers(heads);
            if (learned)
                layer.query_map = numbers(heads * map_numbers), layer.key_map = numbers(kv_heads_ * map_numbers);
            layer.norm1 = norm(e, centered), layer.norm2 = norm(e, centered);
            model.layers.push_back(layer);
        }
        model.tokens = TokenSource{{levels_, kLength, Head::categorical, levels_, 0.0f},
                                   {numbers(levels_ * e)},
                                   numbers(kLength * e),
                                   numbers(e),
                                   affine(e, levels_)};
        decoder_ = std::make_unique<PackedDecoder>(model, 2);
        weights_.clear();  // the decoder must not read them any more
    }

    // A prompt for every row, and a few steps after it.
    Decoded decode(const std::vector<std::int64_t>& tokens, std::int64_t batch, const Filters& filters, int threads,
                   Tokens next = Tokens::given) const {
        const auto rows = static_cast<std::size_t>(batch * kv_heads_), dim = static_cast<std::size_t>(head_dim_);
        const std::size_t sums = rows * static_cast<std::size_t>(features_);
        std::vector<std::vector<float>> s(2), z(2), keys(2), values(2);
        std::vector<float*> s_at, z_at, keys_at, values_at;
        for (int i = 0; i < 2; ++i) {
            s[i].resize(sums * dim);
            z[i].resize(sums);
            s_at.push_back(s[i].data());
            z_at.push_back(z[i].data());
            values[i].resize(rows * dim * static_cast<std::size_t>(window_));
            keys[i].resize(rows * (dim + gated_decay_) * static_cast<std::size_t>(window_));
            keys_at.push_back(keys[i].data());
            values_at.push_back(values[i].data());
        }
        Decoded last;
        last.parameters.resize(static_cast<std::size_t>(batch * levels_));
        last.drawn.resize(static_cast<std::size_t>(batch));
        Random random(1);
        std::uniform_real_distribution<double> unit(0.0, 1.0);
        for (std::int64_t i = 0; i < 4 * batch; ++i) last.quantiles.push_back(unit(random));
        const RowSettings settings(filters, last.drawn.size());
        DecoderCall call{};
        call.batch = batch;
        call.s = s_at.data();
        call.z = z_at.data();
        call.keys = keys_at.data(), call.values = values_at.data();
        call.outputs = last.parameters.data();
        call.threads = threads;
        call.begins = true;
        call.tokens = tokens.data();
        call.inputs = static_cast<std::int64_t>(tokens.size()) / batch + 1;
        std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch));
        for (std::int64_t b = 0; b < batch; ++b) lengths[static_cast<std::size_t>(b)] = b % call.inputs + 1;
        call.lengths = lengths.data();
        decoder_->run(call);
        call.lengths = nullptr;
        call.begins = false;
        call.inputs = 1;
        call.quantiles = last.quantiles.data();
        settings.set(call);
        call.drawn = last.drawn.data();
        call.position = kLength - kSteps;
        if (next == Tokens::drawn_in_one_call) {
            steps_in_one_call(call, last);
            return last;
        }
        for (; call.position < kLength; ++call.position) {
            std::vector<std::int64_t> given(last.drawn.size(), call.position % levels_);
            if (next == Tokens::drawn && call.position > kLength - kSteps) given = last.drawn;
            call.tokens = given.data();
            decoder_->run(call);
        }
        return last;
    }

    std::vector<std::int64_t> prompts(std::int64_t batch) {
        std::vector<std::int64_t> tokens(static_cast<std::size_t>(batch * between(random_, 0, kLength - 4)));
        for (auto& token : tokens) token = between(random_, 0, levels_ - 1);
        return tokens;
    }

private:
    static constexpr std::int64_t kLength = 30, kSteps = 3;

    // All steps in one call, in memory of exactly their size.
    void steps_in_one_call(DecoderCall call, Decoded& last) const {
        std::vector<std::int64_t> first(last.drawn.size(), call.position % levels_), drawn(kSteps * first.size());
        std::vector<float> outputs(kSteps * last.parameters.size());
        std::vector<double> quantiles;
        for (int i = 0; i < kSteps; ++i) {
            quantiles.insert(quantiles.end(), last.quantiles.begin(), last.quantiles.end());
        }
        std::vector<std::int64_t> positions(first.size(), call.position);
        if (call.batch % 2 == 0) call.positions = positions.data();
        call.steps = kSteps;
        call.tokens = first.data(), call.quantiles = quantiles.data();
        call.outputs = outputs.data(), call.drawn = drawn.data();
        decoder_->run(call);
        std::copy(drawn.end() - static_cast<std::ptrdiff_t>(first.size()), drawn.end(), last.drawn.begin());
        std::copy(outputs.end() - static_cast<std::ptrdiff_t>(last.parameters.size()), outputs.end(),
                  last.parameters.begin());
        take_likeliest(call);
        call.steps += 1;
        if (!is_refused(call)) throw std::logic_error("a step after the last position was not refused");
        call.steps = kSteps, call.drawn = nullptr;
        if (!is_refused(call)) throw std::logic_error("several steps without a draw were not refused");
    }

    // The same steps at temperature 0: the first number of a row is 0 and takes the first token that passes, which is the
    // likeliest.
    void take_likeliest(DecoderCall call) const {
        const auto rows = static_cast<std::size_t>(call.batch);
        const std::vector<double> quantiles(4 * rows * kSteps, 0.0), temperatures(rows, 1e-300);
        call.quantiles = quantiles.data(), call.temperatures = temperatures.data();
        decoder_->run(call);
        const float* const logits = call.outputs;
        for (std::size_t b = 0; b < rows; ++b) {
            const float* const row = logits + b * static_cast<std::size_t>(levels_);
            if (row[call.drawn[b]] != *std::max_element(row, row + levels_)) {
                throw std::logic_error("a row at temperature 0 did not take the likeliest token");
            }
        }
    }

    bool is_refused(const DecoderCall& call) const {
        try {
            decoder_->run(call);
        } catch (const std::invalid_argument&) {
            return true;
        }
        return false;
    }

    const float* numbers(std::int64_t count) {
        std::normal_distribution<float> draw(0.0f, 0.3f);
        weights_.emplace_back(static_cast<std::size_t>(count));
        for (float& x : weights_.back()) x = draw(random_);
        return weights_.back().data();
    }

    AffineSource affine(std::int64_t inputs, std::int64_t outputs) {
        return {{numbers(inputs * outputs), outputs, 1}, inputs, outputs, coin() ? numbers(outputs) : nullptr};
    }

    NormWeights norm(std::int64_t width, bool centered) {
        return {numbers(width), coin() ? numbers(width) : nullptr, 1e-5f, centered};
    }

    bool coin() { return between(random_, 0, 1) == 1; }

    Random& random_;
    std::int64_t kv_heads_, head_dim_, hidden_, levels_, features_, window_ = 0;
    bool gated_decay_ = false;
    std::vector<std::vector<float>> weights_;
    std::unique_ptr<PackedDecoder> decoder_;
};

}  // namespace linattn::exercise
