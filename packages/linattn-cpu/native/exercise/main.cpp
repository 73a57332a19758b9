// Random calls of every kernel, for every instruction set that this machine runs, compared with the definition.
// Tensors have exactly their size, and several threads call at once: a build with a sanitizer finds reads past an
// end, undefined shifts and races.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <tuple>

#include "exercise/decoding.hpp"
#include "exercise/definition.hpp"
#include "instruction_sets.hpp"

namespace linattn::exercise {

void fail(const Kernels& kernels, const std::string& what, double got, double expected) {
    std::fprintf(stderr, "%s, %s: expected %g, got %g.\n", kernels.instruction_set, what.c_str(), expected, got);
    std::exit(1);
}

// One random call with its tensors.
struct Case {
    AttentionBackward backward{};
    AttentionForward forward{};
    std::vector<Tensor> tensors;  // query, key, value, grad_out, then what is written
    std::vector<Tensor> decays;   // log_decay and its gradient, (B, H_kv, L, 1)
    std::vector<std::int64_t> lengths, bounds;
    std::vector<std::uint8_t> mask;
    std::vector<char> sums_s, sums_z, normalizer, scratch;
    double tolerance;

    Case(Random& random, std::int64_t longest) {
        Attention call{};
        const std::int64_t kind = between(random, 0, 2);
        const Dtype dtype = kind == 0 ? Dtype::float64 : kind == 1 ? Dtype::float32 : Dtype::bfloat16;
        tolerance = kind == 0 ? 1e-9 : kind == 1 ? 2e-4 : 4e-2;
        call.causal = between(random, 0, 1) == 1;
        const bool packed = between(random, 0, 3) == 0;
        call.batch = packed ? 1 : between(random, 1, 2);
        call.kv_heads = between(random, 1, 2);
        call.heads = call.kv_heads * between(random, 1, 3);
        call.normalize = between(random, 0, 3) > 0;
        call.queries = between(random, 0, longest);
        call.keys = call.causal || packed ? call.queries : between(random, 0, longest);
        call.dim = between(random, 1, 37);
        call.value_dim = between(random, 1, 37);
        call.sequences = call.batch;
        call.query_dtype = call.value_dtype = dtype;
        call.map = between(random, 0, 1) == 1 ? FeatureMap::elu : FeatureMap::relu;
        call.eps = 0.1;
        call.threads = static_cast<int>(between(random, 1, 3));
        if (packed) {
            bounds = {0, call.queries / 3, call.queries / 3, call.queries};
            call.sequences = 3;
            call.cu_seqlens = bounds.data();
        } else if (between(random, 0, 1) == 1) {
            for (std::int64_t b = 0; b < call.batch; ++b) lengths.push_back(between(random, 0, call.keys));
            call.key_lengths = lengths.data();
        }
        for (std::int64_t i = 0; i < call.batch * call.keys; ++i) mask.push_back(between(random, 0, 3) > 0);
        if (between(random, 0, 1) == 1) call.mask = mask.data();
        make_tensors(random, call, dtype);
    }

    void run(const Kernels& kernels) {
        kernels.attention_forward(forward);
        kernels.attention_backward(backward);
    }

    void check(const Kernels& kernels) const {
        const Attention& call = forward;
        for (std::int64_t sequence = 0; sequence < call.sequences; ++sequence) {
            const bool packed = call.cu_seqlens != nullptr;
            const std::int64_t start = packed ? bounds[sequence] : 0;
            const std::int64_t queries = packed ? bounds[sequence + 1] - start : call.queries;
            const std::int64_t keys = packed ? queries : lengths.empty() ? call.keys : lengths[sequence];
            for (std::int64_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
                std::vector<Head> group;
                for (std::int64_t g = 0; g < groups_of(call); ++g) {
                    group.emplace_back(call, tensors[0], tensors[1], tensors[2], packed ? 0 : sequence,
                                       kv_head * groups_of(call) + g, start, queries, keys);
                }
                check_group(kernels, group);
            }
        }
    }

private:
    void make_tensors(Random& random, Attention& call, Dtype dtype) {
        const bool length_first = between(random, 0, 1) == 1;
        const std::int64_t b = call.batch, h = call.heads, kv = call.kv_heads, n = call.queries, l = call.keys,
                           d = call.dim, m = call.value_dim;
        tensors.reserve(8);
        for (const auto& [heads, length, dim] : {std::tuple{h, n, d}, {kv, l, d}, {kv, l, m}, {h, n, m}}) {
            tensors.push_back(Tensor::normal(random, b, heads, length, dim, dtype, length_first));
        }
        for (const auto& [heads, length, dim] : {std::tuple{h, n, m}, {h, n, d}, {kv, l, d}, {kv, l, m}}) {
            tensors.emplace_back(b, heads, length, dim, dtype);
        }
        make_decay(random, call, dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32);
        const std::size_t wide = dtype == Dtype::float64 ? 8 : 4;
        const auto states = static_cast<std::size_t>(call.sequences * kv);
        sums_s.resize(states * static_cast<std::size_t>(d * m) * wide);
        sums_z.resize(states * static_cast<std::size_t>(d) * wide);
        normalizer.resize(static_cast<std::size_t>(b * h * n) * wide);
        scratch.resize(normalizer.size());
        call.query = tensors[0].view();
        call.key = tensors[1].view();
        call.value = tensors[2].view();
        static_cast<Attention&>(forward) = call;
        static_cast<Attention&>(backward) = call;
        forward.last = {sums_s.data(), sums_z.data()};
        forward.out = tensors[4].data();
        forward.normalizer = normalizer.data();
        backward.grad_out = tensors[3].view();
        if (!call.causal) backward.state = forward.last;
        backward.out = forward.out;
        backward.normalizer = forward.normalizer;
        backward.scratch = scratch.data();
        backward.grad_query = tensors[5].data();
        backward.grad_key = tensors[6].data();
        backward.grad_value = tensors[7].data();
        if (call.log_decay != nullptr && between(random, 0, 1) == 1) backward.grad_log_decay = decays[1].data();
        // Any of them may be unwanted.
        for (void** gradient :
             {&backward.grad_query, &backward.grad_key, &backward.grad_value, &backward.grad_log_decay}) {
            if (between(random, 0, 7) == 0) *gradient = nullptr;
        }
    }

    void make_decay(Random& random, Attention& call, Dtype dtype) {
        if (!call.causal || between(random, 0, 1) == 0) return;
        for (int i = 0; i < 2; ++i) decays.emplace_back(call.batch, call.kv_heads, call.keys, 1, dtype);
        // Slow or fast; and a fixed decay goes through other kernels than one whose gradient is wanted.
        std::exponential_distribution<double> draw(between(random, 0, 1) == 1 ? 50 : 2);
        for (std::int64_t i = 0; i < decays[0].size(); ++i) decays[0].set(i, -draw(random));
        call.log_decay = decays[0].data();
    }

    // Checks the heads, and a sample of the gradients of keys and values, which are sums over the reading queries.
    void check_group(const Kernels& kernels, const std::vector<Head>& group) const {
        for (const Head& head : group) check_head(kernels, head);
        for (std::int64_t j = 0; j < group[0].keys; j += 11) {
            if (backward.grad_key != nullptr) check_key_gradient(kernels, group, j);
            if (backward.grad_value != nullptr) check_value_gradient(kernels, group, j);
            if (backward.grad_log_decay != nullptr) check_decay_gradient(kernels, group, j);
        }
    }

    void check_head(const Kernels& kernels, const Head& head) const {
        for (std::int64_t i = 0; i < head.queries; ++i) {
            for (std::int64_t m = 0; m < head.call.value_dim; ++m) {
                compare(kernels, "an output", written(4, head, i, m), head.outs[i][m]);
            }
        }
        for (std::int64_t i = 0; i < head.queries && backward.grad_query != nullptr; i += 7) {
            check_query_gradient(kernels, head, i);
        }
    }

    double written(std::size_t tensor, const Head& head, std::int64_t position, std::int64_t dim) const {
        return tensors[tensor].at(head.batch, head.head, head.start + position, dim);
    }
    double written_key(std::size_t tensor, const Head& head, std::int64_t position, std::int64_t dim) const {
        return tensors[tensor].at(head.batch, head.kv_head, head.start + position, dim);
    }

    void check_query_gradient(const Kernels& kernels, const Head& head, std::int64_t i) const {
        for (std::int64_t d = 0; d < head.call.dim; ++d) {
            double sum = 0;
            for (std::int64_t j = 0; j < head.keys; ++j) {
                sum +=
                    head.score_gradient(i, j, tensors[3]) * head.decay_between(i, j) * phi(head.call.map, head.k(j, d));
            }
            compare(kernels, "a query gradient", written(5, head, i, d), sum * slope(head.call.map, head.q(i, d)));
        }
    }

    void check_key_gradient(const Kernels& kernels, const std::vector<Head>& group, std::int64_t j) const {
        const FeatureMap map = forward.map;
        for (std::int64_t d = 0; d < forward.dim; ++d) {
            double sum = 0;
            for (const Head& head : group) {
                for (std::int64_t i = 0; i < head.queries; ++i) {
                    sum += head.score_gradient(i, j, tensors[3]) * head.decay_between(i, j) * phi(map, head.q(i, d));
                }
            }
            compare(kernels, "a key gradient", written_key(6, group[0], j, d), sum * slope(map, group[0].k(j, d)));
        }
    }

    void check_value_gradient(const Kernels& kernels, const std::vector<Head>& group, std::int64_t j) const {
        for (std::int64_t m = 0; m < forward.value_dim; ++m) {
            double sum = 0;
            for (const Head& head : group) {
                for (std::int64_t i = 0; i < head.queries; ++i) sum += head.weight(i, j) * written(3, head, i, m);
            }
            compare(kernels, "a value gradient", written_key(7, group[0], j, m), sum);
        }
    }

    // The gradient of the decay at m: the sum over all pairs j < m <= i of score and gradient of the score.
    void check_decay_gradient(const Kernels& kernels, const std::vector<Head>& group, std::int64_t m) const {
        double sum = 0;
        for (const Head& head : group) {
            for (std::int64_t i = m; i < head.queries && head.exists(m); ++i) {
                for (std::int64_t j = 0; j < m; ++j) {
                    sum += head.scores[i][j] * head.score_gradient(i, j, tensors[3]);
                }
            }
        }
        const Head& one = group[0];
        compare(kernels, "a decay gradient", decays[1].at(one.batch, one.kv_head, one.start + m, 0), sum);
    }

    void compare(const Kernels& kernels, const std::string& what, double got, double expected) const {
        if (!(std::fabs(got - expected) <= tolerance * (1 + std::fabs(expected)))) {
            fail(kernels, what, got, expected);
        }
    }
};

// Sequences long enough to be cut for several threads; not compared with the definition, which would take too long.
void run_long(Random& random, const Kernels& kernels) {
    Case one(random, 0);
    while (one.forward.queries < 600) one = Case(random, 1200);
    one.forward.threads = one.backward.threads = 4;
    one.run(kernels);
}

// One key on zero states: every query head that reads it returns its value; empty rows return 0.
void run_step(Random& random, const Kernels& kernels) {
    const std::int64_t b = between(random, 1, 9), kv = between(random, 1, 3), groups = between(random, 1, 3),
                       h = kv * groups, d = between(random, 1, 65), m = between(random, 1, 65);
    const Tensor q = Tensor::normal(random, b, h, 1, d, Dtype::float32, false);
    const Tensor k = Tensor::normal(random, b, kv, 1, d, Dtype::float32, false);
    const Tensor v = Tensor::normal(random, b, kv, 1, m, Dtype::float32, false);
    const Tensor s(b, kv, d, m, Dtype::float32), z(b, kv, 1, d, Dtype::float32), out(b, h, 1, m, Dtype::float32);
    const Tensor decay(b, kv, 1, 1, Dtype::float32);
    std::vector<std::int64_t> slots;
    for (std::int64_t row = 0; row < b; ++row) slots.push_back(row % 3 == 2 ? -1 : b - 1 - row);
    Step call{};
    call.query = q.view(), call.key = k.view(), call.value = v.view(), call.s = s.view(), call.z = z.view();
    call.out = out.data();
    call.batch = b, call.heads = h, call.kv_heads = kv, call.dim = d, call.value_dim = m;
    call.query_dtype = call.value_dtype = Dtype::float32;
    call.map = FeatureMap::elu, call.normalize = true, call.threads = 3;
    if (between(random, 0, 1) == 1) call.state_indices = slots.data();
    if (between(random, 0, 1) == 1) call.log_decay = decay.data();
    kernels.step(call);
    for (std::int64_t row = 0; row < b; ++row) {
        const bool empty = call.state_indices != nullptr && slots[row] < 0;
        for (std::int64_t head = 0; head < h; ++head) {
            for (std::int64_t c = 0; c < m; ++c) {
                const double got = out.at(row, head, 0, c), expected = empty ? 0 : v.at(row, head / groups, 0, c);
                if (std::fabs(got - expected) > 1e-4) fail(kernels, "a step", got, expected);
            }
        }
    }
}

// Several threads must decode the same as one thread, and draw by the filters. The decoder is packed for the kernels in
// use.
void run_decoder(Random& random, const Kernels& kernels) {
    const WeightFormat formats[] = {WeightFormat::float32, WeightFormat::bfloat16, WeightFormat::int8};
    RandomModel model(random, formats[between(random, 0, 2)]);
    const std::int64_t batch = between(random, 1, 40);
    const std::vector<std::int64_t> prompts = model.prompts(batch);
    const Filters filters(random);
    const Decoded one = model.decode(prompts, batch, filters, 1), team = model.decode(prompts, batch, filters, 3);
    for (std::size_t i = 0; i < one.parameters.size(); ++i) {
        const double expected = one.parameters[i], got = team.parameters[i];
        if (!(std::fabs(expected - got) <= 2e-2 * (1 + std::fabs(expected)))) {
            fail(kernels, "a decoded parameter", got, expected);
        }
    }
    for (std::size_t b = 0; b < team.drawn.size(); ++b) {
        if (!team.is_drawn_right(b, filters)) fail(kernels, "correct draws of row " + std::to_string(b), 0, 1);
    }
    const Decoded single = model.decode(prompts, batch, filters, 3, Tokens::drawn),
                  at_once = model.decode(prompts, batch, filters, 3, Tokens::drawn_in_one_call);
    if (at_once.drawn != single.drawn || at_once.parameters != single.parameters) {
        fail(kernels, "one call of several steps like one for each", 0, 1);
    }
}

void run_all(const Kernels& kernels, unsigned seed, int rounds) {
    Random random(seed);
    for (int round = 0; round < rounds; ++round) {
        Case one(random, 70);
        one.run(kernels);
        one.check(kernels);
        run_step(random, kernels);
        run_decoder(random, kernels);
    }
    run_long(random, kernels);
}

}  // namespace linattn::exercise

int main(int count, char** arguments) {
    const int rounds = count > 1 ? std::atoi(arguments[1]) : 40;
    for (const linattn::Kernels* kernels : linattn::usable_kernels()) {
        linattn::use_instruction_set(kernels->instruction_set);
        // Two callers at once, each with threads of its own.
        std::thread other([=] { linattn::exercise::run_all(*kernels, 1, rounds); });
        linattn::exercise::run_all(*kernels, 2, rounds);
        other.join();
    }
    std::printf("%d calls of each instruction set by two threads agree with the definition.\n", rounds);
    return 0;
}
