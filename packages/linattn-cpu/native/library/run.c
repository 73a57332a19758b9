/* linattn-run: text or a picture from a model that linattn_models.export_decoder wrote.
 *
 *     linattn-run model.linattn -i "the prompt" -n 200 -t 0.8 -s 7
 *     linattn-run digits.linattn -p 28x28 -o digit.pgm
 *     linattn-run model.linattn -n 1000 -b          # tokens a second
 */
#include <errno.h>
#include <inttypes.h>
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

typedef struct {
    const char *model, *prompt, *out;
    int64_t count; /* -1: not given */
    int width, height, threads, bench;
    linattn_sampling sampling;
} Options;

_Noreturn static void fail(const char* sentence) {
    fprintf(stderr, "linattn-run: %s\n", sentence);
    exit(1);
}

_Noreturn static void print_usage(const char* wanted, const char* got) {
    fprintf(stderr, "linattn-run: expected %s, got %s.\n\n%s", wanted, got, usage);
    exit(2);
}

static void require(int holds, const char* option, const char* wanted, const char* got) {
    if (holds) return;
    fprintf(stderr, "linattn-run: %s: expected %s, got '%s'.\n", option, wanted, got);
    exit(2);
}

static double number(const char* option, const char* text) {
    char* end;
    const double value = strtod(text, &end);
    require(end != text && *end == '\0', option, "a number", text);
    return value;
}

static int64_t whole(const char* option, const char* text, int64_t least, int64_t most) {
    char* end;
    errno = 0;
    const int64_t value = strtoll(text, &end, 10);
    const int holds = end != text && *end == '\0' && errno == 0 && value >= least && value <= most;
    require(holds, option, "a whole number in its range", text);
    return value;
}

static void read_size(Options* options, const char* text) {
    char more;
    const int found = sscanf(text, "%5dx%5d%c", &options->width, &options->height, &more);
    require(found == 2 && options->width > 0 && options->height > 0, "-p", "a size such as 28x28", text);
}

static Options read_options(int argc, char** argv) {
    Options options = {.prompt = "", .count = -1, .threads = 1, .sampling = linattn_defaults()};
    for (int i = 1; i < argc; ++i) {
        const char* const name = argv[i];
        if (name[0] != '-') {
            if (options.model != NULL) print_usage("one file of a model", name);
            options.model = name;
            continue;
        }
        if (strcmp(name, "-b") == 0) {
            options.bench = 1;
            continue;
        }
        if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0) {
            fputs(usage, stdout);
            exit(0);
        }
        const char* const value = argv[++i]; /* NULL behind the last one */
        if (strlen(name) != 2 || value == NULL) print_usage("an option of these, with its value", name);
        switch (name[1]) {
            case 'i': options.prompt = value; break;
            case 'n': options.count = whole(name, value, 0, INT32_MAX); break;
            case 't': options.sampling.temperature = number(name, value); break;
            case 'k': options.sampling.top_k = whole(name, value, 0, INT64_MAX); break;
            case 'P': options.sampling.top_p = number(name, value); break;
            case 'm': options.sampling.min_p = number(name, value); break;
            case 'r': options.sampling.repetition_penalty = number(name, value); break;
            case 's': options.sampling.seed = whole(name, value, INT64_MIN, INT64_MAX); break;
            case 'p': read_size(&options, value); break;
            case 'o': options.out = value; break;
            case 'j': options.threads = (int)whole(name, value, 0, INT32_MAX); break;
            default: print_usage("one of these options", name);
        }
    }
    if (options.model == NULL) print_usage("the file of a model", "none");
    return options;
}

static void write_picture(const Options* options, const linattn_info* info, const int32_t* tokens, int64_t numbers,
                          FILE* out) {
    const double scale = info->levels > 1 ? 255.0 / (double)(info->levels - 1) : 0;
    fprintf(out, "P%c\n%d %d\n255\n", info->channels == 3 ? '6' : '5', options->width, options->height);
    for (int64_t i = 0; i < numbers; ++i) fputc((int)(tokens[i] * scale + 0.5), out);
}

/* As numbers where a model has no text. */
static void write_text(const linattn_model* model, const int32_t* tokens, int64_t numbers, FILE* out) {
    for (int64_t i = 0; i < numbers; ++i) {
        int64_t bytes;
        const char* const piece = linattn_decode(model, tokens[i], &bytes);
        if (piece != NULL) {
            fwrite(piece, 1, (size_t)bytes, out);
        } else {
            fprintf(out, "%" PRId32 " ", tokens[i]);
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

    const int64_t length = (int64_t)strlen(options.prompt);
    const int64_t given = length > 0 ? linattn_encode(model, options.prompt, length, NULL, 0) : 0;
    if (given < 0) fail(linattn_error());
    if (options.width > 0) {
        options.count = (int64_t)options.width * options.height - given;
        if (options.count < 0) fail("-i: expected at most the pixels of the picture.");
    } else if (options.count < 0) {
        options.count = 256;
    }

    const int64_t numbers = (given + options.count) * info.channels; /* the prompt, and behind it what is drawn */
    int32_t* const tokens = calloc((size_t)numbers + 1, sizeof *tokens);
    if (tokens == NULL) fail("memory: expected more of it.");
    if (given > 0) linattn_encode(model, options.prompt, length, tokens, given);
    struct timespec before, after;
    timespec_get(&before, TIME_UTC);
    if (linattn_generate(state, tokens, given, &options.sampling, options.count, NULL, 0, tokens + given, NULL) != 0) {
        fail(linattn_error());
    }
    timespec_get(&after, TIME_UTC);

    FILE* const out = options.out == NULL ? stdout : fopen(options.out, "wb");
    if (out != NULL && options.width > 0) write_picture(&options, &info, tokens, numbers, out);
    if (out != NULL && options.width == 0) write_text(model, tokens, numbers, out);
    if (out == NULL || ferror(out) || fclose(out) != 0) {
        fprintf(stderr, "linattn-run: %s: expected a place to write to, got: %s.\n",
                options.out == NULL ? "standard output" : options.out, strerror(errno));
        return 1;
    }
    if (options.bench) {
        const double seconds = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
        fprintf(stderr,
                "\n%" PRId64 " tokens in %.3f s: %.0f a second; state %" PRId64 " bytes, weights %" PRId64 " bytes\n",
                options.count, seconds, (double)options.count / seconds, info.state_bytes, info.model_bytes);
    }
    free(tokens), linattn_state_free(state), linattn_close(model);
    return 0;
}
