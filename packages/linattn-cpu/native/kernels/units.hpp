// The translation units of one instruction set: compiled beside each other, and after a change only those that it
// concerns. Each is for every dtype.
#pragma once

#include "calls.hpp"
#include "kernels/simd.hpp"

LINATTN_BEGIN

void causal_forward(const AttentionForward& call);
void causal_backward(const AttentionBackward& call);
void noncausal_forward(const AttentionForward& call);
void noncausal_backward(const AttentionBackward& call);

namespace decoding {

// The bytes of memory that `decode` needs.
std::int64_t workspace_bytes(const DecoderModel& model, const DecoderCall& call);

// Runs the call with its workspace in `memory`, which is aligned to cache lines.
void decode(const DecoderModel& model, const DecoderCall& call, void* memory);

// The draw that a call describes, from parameters (B, P) in `call.outputs`.
void draw(const DecoderModel& model, const DecoderCall& call);

}  // namespace decoding

LINATTN_END
