// The whole model for all inputs of a call: embedding, layers, output, sampling, by one team of threads.
#include "kernels/decoder/many_rows.hpp"
#include "kernels/decoder/single_row.hpp"
#include "kernels/units.hpp"

LINATTN_BEGIN
namespace decoding {

// Several threads would sum the row of a batch in another order than beside others.
static bool has_single_row(const DecoderCall& call) {
    return rows_of_blocks(call) == 1 && (call.positions == nullptr || call.threads == 1);
}

std::int64_t workspace_bytes(const DecoderModel& model, const DecoderCall& call) {
    if (has_single_row(call)) return bytes_for_single_row(model, call);
    Arena size(nullptr);
    lay_out(size, model, call);
    return size.bytes();
}

struct Team {
    const DecoderModel& model;
    const DecoderCall& call;
    void* memory;
};

static void work(void* context, Member& member) {
    const Team& team = *static_cast<const Team*>(context);
    const Thread thread{team.model, team.call, member};
    if (has_single_row(team.call)) {
        run_single_row(thread, team.memory);
    } else {
        run_many_rows(thread, team.memory);
    }
}

void decode(const DecoderModel& model, const DecoderCall& call, void* memory) {
    Team team{model, call, memory};
    run_phases(call.threads, work, &team);
}

void draw(const DecoderModel& model, const DecoderCall& call) {
    const std::int64_t count = model.tokens.output.outputs, padded = round_up(count, kPanel);
    const Scratch memory((padded + draw_numbers(model.tokens, call)) * static_cast<std::int64_t>(sizeof(float)));
    auto* const parameters = static_cast<float*>(memory.get());
    for (std::int64_t b = 0; b < call.batch; ++b) {
        std::memcpy(parameters, call.outputs + b * count, static_cast<std::size_t>(count) * sizeof(float));
        draw_token(model.tokens, call, b, parameters, parameters + padded);
    }
}

}  // namespace decoding
LINATTN_END
