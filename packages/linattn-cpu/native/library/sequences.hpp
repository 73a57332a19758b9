// A loaded model and the states of its sequences, behind the C interface of linattn.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "library/linattn.h"
#include "library/tensor_file.hpp"
#include "packed_decoder.hpp"

namespace linattn {

// Several threads may use it at once.
struct Model {
    Model(const TensorFile& file, int threads);

    // Of the state: a window's keys and values, then s and z, named as in linattn_models.
    struct Part {
        std::string name;
        Shape shape;  // (1, ...), of one row
        std::int64_t numbers;
    };

    Metadata metadata;
    linattn_info info{};
    Head head = Head::none;
    bool has_start = false;
    int threads;
    std::vector<Part> parts;          // of all layers, one after the other
    std::vector<std::string> pieces;  // the text of each token; none if the file does not say
    std::unique_ptr<PackedDecoder> decoder;
};

using SharedModel = std::shared_ptr<const Model>;

class Sequences {
public:
    Sequences(SharedModel model, std::int64_t rows);
    // Of a file of linattn_models.DecodingState.
    Sequences(SharedModel model, const TensorFile& file);

    std::int64_t rows() const { return static_cast<std::int64_t>(positions_.size()); }
    const float* parameters() const { return parameters_.empty() ? nullptr : parameters_.data(); }

    void read(const std::int32_t* tokens, std::int64_t count);
    void read_vectors(const float* vectors, std::int64_t count, float* outputs);
    void sample(const linattn_sampling& sampling, std::int32_t* tokens) const;
    void generate(const std::int32_t* prompt, std::int64_t prompt_count, const linattn_sampling& sampling,
                  std::int64_t count, const std::vector<std::int32_t>& stops, std::int32_t* tokens,
                  std::int64_t* lengths);
    std::vector<char> save() const;

private:
    bool begins() const;
    void run(DecoderCall call, std::int64_t inputs);
    void draw(const linattn_sampling& sampling, const float* parameters, std::int32_t* tokens) const;

    SharedModel model_;
    std::vector<std::int64_t> positions_;  // of the next inputs
    std::vector<float> numbers_;           // [part][row][...]
    std::vector<float> parameters_;        // (B, P); none before anything is read
};

}  // namespace linattn
