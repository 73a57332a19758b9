/* linattn-run: text or a picture from a model that linattn_models.export_decoder wrote.
 *
 *     linattn-run model.linattn -i "the prompt" -n 200 -t 0.8 -s 7
 *     linattn-run digits.linattn -p 28x28 -o digit.pgm
 *     linattn-run model.linattn -n 1000 -b          # tokens a second
 */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "linattn.h"

static const char* const usage =
    "linattn-run MODEL [options]\n"
    "  -i TEXT   the prompt; without, the model begins\n"
    "  -n COUNT  tokens to draw (256, or those of the picture)\n"
    "  -t T      temperature (1); 0 takes the likeliest token\n"
    "  -k K      top_k (0: off)    -P P  top_p (0: off)    -m P  min_p (0: off)    -r R  repetition penalty (1)\n"
    "  -s SEED   of the random numbers (0)\n"
    "  -p WxH    the tokens are the pixels of a picture: PGM, or PPM with three channels\n"
    "  -o FILE   write there; without, to standard output\n"
    "  -j COUNT  threads (1; 0: all cores)\n"
    "  -b        print tokens a second\n";

#define MOST_TOKENS ((int64_t)1 << 40)

typedef struct {
    const char *model, *prompt, *out;
    int64_t count;
    int width, height, threads, bench;
    linattn_sampling sampling;
} Options;

static void fail(const char* sentence) {
    fprintf(stderr, "linattn-run: %s\n", sentence);
    exit(1);
}

static double number(const char* option, const char* text) {
    char* end = NULL;
    errno = 0;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0) {
        fprintf(stderr, "linattn-run: %s: expected a number, got '%s'.\n", option, text);
        exit(2);
    }
    return value;
}

static int64_t whole(const char* option, const char* text, int64_t low, int64_t high) {
    char* end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < low || value > high) {
        fprintf(stderr, "linattn-run: %s: expected a whole number in %lld..%lld, got '%s'.\n", option, (long long)low,
                (long long)high, text);
        exit(2);
    }
    return value;
}

static Options read_options(int argc, char** argv) {
    Options options = {NULL, NULL, NULL, -1, 0, 0, 1, 0, linattn_defaults()};
    char behind;
    for (int i = 1; i < argc; ++i) {
        const char* const name = argv[i];
        if (name[0] != '-') {
            options.model = name;
            continue;
        }
        if (strcmp(name, "-b") == 0) {
            options.bench = 1;
            continue;
        }
        const int is_last = i + 1 == argc;
        const char* const value = is_last ? "" : argv[++i];
        switch (strlen(name) == 2 && !is_last ? name[1] : 0) {
            case 'i': options.prompt = value; break;
            case 'n': options.count = whole(name, value, 0, MOST_TOKENS); break;
            case 't': options.sampling.temperature = number(name, value); break;
            case 'k': options.sampling.top_k = whole(name, value, 0, INT64_MAX); break;
            case 'P': options.sampling.top_p = number(name, value); break;
            case 'm': options.sampling.min_p = number(name, value); break;
            case 'r': options.sampling.repetition_penalty = number(name, value); break;
            case 's': options.sampling.seed = whole(name, value, INT64_MIN, INT64_MAX); break;
            case 'o': options.out = value; break;
            case 'j': options.threads = (int)whole(name, value, 0, INT_MAX); break;
            case 'p':
                if (sscanf(value, "%5dx%5d%c", &options.width, &options.height, &behind) == 2 && options.width > 0 &&
                    options.height > 0) {
                    break;
                } /* fall through */
            default: fputs(usage, stderr); exit(2);
        }
    }
    if (options.model == NULL) fputs(usage, stderr), exit(2);
    return options;
}

static void* memory(int64_t bytes) {
    void* const block = malloc((size_t)(bytes > 0 ? bytes : 1));
    if (block == NULL) fail("memory: expected more of it.");
    return block;
}

static void write_tokens(const Options* options, const linattn_model* model, const linattn_info* info,
                         const int32_t* tokens, int64_t count, FILE* out) {
    if (options->width > 0) {
        const int32_t most = (int32_t)info->levels - 1;
        fprintf(out, "P%c\n%d %d\n255\n", info->channels == 3 ? '6' : '5', options->width, options->height);
        for (int64_t i = 0; i < count * info->channels; ++i)
            fputc(most > 0 ? (int)(tokens[i] * 255.0 / most + 0.5) : 0, out);
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        int64_t bytes = 0;
        const char* const piece = linattn_decode(model, tokens[i * info->channels], &bytes);
        if (piece != NULL) {
            fwrite(piece, 1, (size_t)bytes, out);
        } else {
            for (int64_t c = 0; c < info->channels; ++c) fprintf(out, "%d ", tokens[i * info->channels + c]);
        }
    }
}

int main(int argc, char** argv) {
    Options options = read_options(argc, argv);
    linattn_info info;
    linattn_model* const model = linattn_open(options.model, options.threads);
    if (model == NULL || linattn_describe(model, &info) != 0) fail(linattn_error());
    if (info.channels == 0) fail("the model: expected one of tokens, got one of vectors.");
    linattn_state* const state = linattn_state_new(model, 1);
    if (state == NULL) fail(linattn_error());

    const size_t length = options.prompt == NULL ? 0 : strlen(options.prompt);
    int32_t* const prompt = memory((int64_t)(length + 1) * 4);
    const int64_t read =
        length == 0 ? 0 : linattn_encode(model, options.prompt, (int64_t)length, prompt, (int64_t)length);
    if (read < 0) fail(linattn_error());
    if (options.width > 0) options.count = (int64_t)options.width * options.height - read;
    if (options.width > 0 && options.count < 0) fail("-i: expected at most the pixels of the picture.");
    if (options.count < 0) options.count = 256;

    int32_t* const tokens = memory((read + options.count) * info.channels * 4);
    memcpy(tokens, prompt, (size_t)read * 4);
    struct timespec before, after;
    timespec_get(&before, TIME_UTC);
    if (linattn_generate(state, prompt, read, &options.sampling, options.count, NULL, 0, tokens + read * info.channels,
                         NULL)) {
        fail(linattn_error());
    }
    timespec_get(&after, TIME_UTC);

    FILE* const out = options.out == NULL ? stdout : fopen(options.out, "wb");
    if (out != NULL) write_tokens(&options, model, &info, tokens, read + options.count, out);
    /* What was written before may have failed, too. */
    const int is_written = out != NULL && !ferror(out) && fflush(out) == 0;
    if (!is_written || (options.out != NULL && fclose(out) != 0)) {
        fprintf(stderr, "linattn-run: %s: expected a place to write to, got: %s.\n",
                options.out == NULL ? "standard output" : options.out, strerror(errno));
        return 1;
    }
    if (options.bench) {
        const double seconds = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
        fprintf(stderr, "\n%lld tokens in %.3f s: %.0f a second; state %lld bytes, weights %lld bytes\n",
                (long long)options.count, seconds, (double)options.count / seconds, (long long)info.state_bytes,
                (long long)info.model_bytes);
    }
    free(tokens), free(prompt), linattn_state_free(state), linattn_close(model);
    return 0;
}
