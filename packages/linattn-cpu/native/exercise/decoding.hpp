// A small model with random weights, decoded with several threads and with one.
#pragma once

#include <cmath>

#include "exercise/tensors.hpp"
#include "packed_decoder.hpp"

namespace linattn::exercise {

// Random weights in memory of exactly their size, and a decoder packed from them.
class RandomModel {
public:
    RandomModel(Random& random, WeightFormat format)
        : random_(random),
          heads_(between(random, 1, 3)),
          head_dim_(between(random, 1, 19)),
          hidden_(between(random, 1, 70)),
          levels_(between(random, 2, 40)) {
        const std::int64_t e = heads_ * head_dim_;
        ModelSource model{
            {format, heads_, head_dim_, hidden_, FeatureMap::elu, 1e-6f, between(random, 0, 1) == 1, Activation::gelu},
            {},
            norm(e),
            {}};
        for (int i = 0; i < 2; ++i) {
            model.layers.push_back(
                {affine(e, 3 * e), affine(e, e), affine(e, hidden_), affine(hidden_, e), norm(e), norm(e)});
        }
        model.tokens = TokenSource{{levels_, kLength, Head::categorical, levels_, 0.0f},
                                   {numbers(levels_ * e)},
                                   numbers(kLength * e),
                                   numbers(e),
                                   affine(e, levels_)};
        decoder_ = std::make_unique<PackedDecoder>(model, 2);
        weights_.clear();  // the decoder must not read them any more
    }

    // The parameters after a prompt for every row and a few steps.
    std::vector<float> decode(const std::vector<std::int64_t>& tokens, std::int64_t batch, int threads) const {
        const auto states = static_cast<std::size_t>(batch * heads_ * head_dim_);
        std::vector<std::vector<float>> s(2), z(2);
        std::vector<float*> s_at, z_at;
        for (int i = 0; i < 2; ++i) {
            s[i].resize(states * static_cast<std::size_t>(head_dim_));
            z[i].resize(states);
            s_at.push_back(s[i].data());
            z_at.push_back(z[i].data());
        }
        std::vector<float> outputs(static_cast<std::size_t>(batch * levels_)), waits(outputs.size(), 0.5f);
        std::vector<std::int64_t> drawn(static_cast<std::size_t>(batch));
        DecoderCall call{};
        call.batch = batch;
        call.s = s_at.data();
        call.z = z_at.data();
        call.outputs = outputs.data();
        call.temperature = 1.0f;
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
        call.waits = waits.data();
        call.drawn = drawn.data();
        for (call.position = kLength - 3; call.position < kLength; ++call.position) {
            std::vector<std::int64_t> next(static_cast<std::size_t>(batch), call.position % levels_);
            call.tokens = next.data();
            decoder_->run(call);
        }
        return outputs;
    }

    std::vector<std::int64_t> prompts(std::int64_t batch) {
        std::vector<std::int64_t> tokens(static_cast<std::size_t>(batch * between(random_, 0, kLength - 4)));
        for (auto& token : tokens) token = between(random_, 0, levels_ - 1);
        return tokens;
    }

private:
    static constexpr std::int64_t kLength = 30;

    const float* numbers(std::int64_t count) {
        std::normal_distribution<float> draw(0.0f, 0.3f);
        weights_.emplace_back(static_cast<std::size_t>(count));
        for (float& x : weights_.back()) x = draw(random_);
        return weights_.back().data();
    }

    AffineSource affine(std::int64_t inputs, std::int64_t outputs) {
        return {{numbers(inputs * outputs), outputs, 1}, inputs, outputs, numbers(outputs)};
    }

    NormWeights norm(std::int64_t width) { return {numbers(width), numbers(width), 1e-5f}; }

    Random& random_;
    std::int64_t heads_, head_dim_, hidden_, levels_;
    std::vector<std::vector<float>> weights_;
    std::unique_ptr<PackedDecoder> decoder_;
};

}  // namespace linattn::exercise
