/* liblinattn: decodes with a model that linattn_models.export_decoder wrote, without Python.
 *
 *     linattn_model* model = linattn_open("model.linattn", 0);
 *     linattn_state* state = linattn_state_new(model, 1);
 *     linattn_sampling sampling = linattn_defaults();
 *     int32_t tokens[100];
 *     if (linattn_generate(state, prompt, 5, &sampling, 100, NULL, 0, tokens, NULL)) puts(linattn_error());
 *
 * With the same seed, the tokens are those of `generate(seeds=...)` in Python. Threads may share a model; a state
 * belongs to one of them at a time. Functions that return int return 0, or -1 if they fail; those that return a pointer
 * return NULL then, unless they say something else. Nothing has changed after a failure, unless a function says so.
 * Strings are the library's: an error lives until this thread's next call, the others as long as the model. Random
 * numbers belong to a position and a row, so two calls draw what one long call draws. Sizes of arrays: B rows of the
 * state, C numbers of a token. The bytes of a file begin at an address that 8 divides. */
#ifndef LINATTN_H
#define LINATTN_H

#include <stdint.h>

#define LINATTN_ABI 1 /* grows when something below changes */

#if defined(__GNUC__) && !defined(__wasm__)
#define LINATTN_API __attribute__((visibility("default")))
#else
#define LINATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct linattn_model linattn_model;
typedef struct linattn_state linattn_state;

typedef struct {
    int64_t levels;                    /* tokens are 0 .. levels - 1; 0 for a model of vectors */
    int64_t channels;                  /* C: 1, or 3 for the colors of a pixel; 0 for a model of vectors */
    int64_t parameters;                /* P: numbers that describe the next token; for vectors, their width */
    int64_t layers, width, max_length; /* max_length: the most positions, 0 for no limit */
    int64_t window;                    /* the last keys, which softmax attention reads; 0 for none */
    int64_t state_bytes;               /* of one row; they do not grow */
    int64_t model_bytes;               /* of the packed weights */
} linattn_info;

typedef struct {
    double temperature;        /* 1; 0 takes the likeliest token */
    double top_p, min_p;       /* 0 switches them off */
    double repetition_penalty; /* 1 changes nothing */
    int64_t top_k;             /* 0 switches it off */
    int64_t seed;              /* 0 */
    int64_t sample;            /* number of the first row among those of the seed: 0 .. 2^32 - 1 */
} linattn_sampling;

LINATTN_API int linattn_abi(void);           /* LINATTN_ABI of the library */
LINATTN_API const char* linattn_error(void); /* why this thread's last failure happened, as a sentence */
LINATTN_API linattn_sampling linattn_defaults(void);

/* A model from a file (on Unix and macOS), or from bytes that are not needed afterwards. threads: 0 for all cores. */
LINATTN_API linattn_model* linattn_open(const char* file, int threads);
LINATTN_API linattn_model* linattn_open_bytes(const void* bytes, int64_t size, int threads);
LINATTN_API void linattn_close(linattn_model* model); /* its states stay valid */
LINATTN_API int linattn_describe(const linattn_model* model, linattn_info* info);
/* What the file says: "weights", "fingerprint", "tokenizer", ...; "" for what it does not say, and after a failure. */
LINATTN_API const char* linattn_metadata(const linattn_model* model, const char* name);

LINATTN_API linattn_state* linattn_state_new(const linattn_model* model, int64_t rows);
LINATTN_API linattn_state* linattn_state_copy(const linattn_state* state);
LINATTN_API void linattn_state_free(linattn_state* state);
LINATTN_API int64_t linattn_state_rows(const linattn_state* state);
/* The bytes of a file of linattn_models.DecodingState. Returns their number, or -1; writes them if there is room. */
LINATTN_API int64_t linattn_state_save(const linattn_state* state, void* bytes, int64_t room);
LINATTN_API linattn_state* linattn_state_load(const linattn_model* model, const void* bytes, int64_t size);

/* Reads tokens (B, count, C), or vectors (B, count, width) whose outputs have the same shape. A model with a start
 * vector reads that first; count may be 0 then. */
LINATTN_API int linattn_read(linattn_state* state, const int32_t* tokens, int64_t count);
LINATTN_API int linattn_read_vectors(linattn_state* state, const float* vectors, int64_t count, float* outputs);
/* The parameters (B, P) of the next token's distribution, valid until the state changes; NULL before a read. */
LINATTN_API const float* linattn_parameters(const linattn_state* state);
/* Draws the next tokens (B, C), and does not read them. */
LINATTN_API int linattn_sample(linattn_state* state, const linattn_sampling* sampling, int32_t* tokens);
/* Reads a prompt (B, prompt_count, C), then draws up to `count` tokens of each row, (B, count, C), and reads all but the
 * last: begin the next prompt with that. A row ends after a token of `stop`; a penalty counts the tokens of prompt and
 * row. lengths: (B), how many tokens a row has, or NULL; behind them nothing is written. A row that ended before others
 * has read on: do not continue it. After a failure, the prompt and tokens may have been read. */
LINATTN_API int linattn_generate(linattn_state* state, const int32_t* prompt, int64_t prompt_count,
                                 const linattn_sampling* sampling, int64_t count, const int32_t* stop,
                                 int64_t stop_count, int32_t* tokens, int64_t* lengths);

/* For models of bytes and of characters. Returns the number of tokens, or -1; writes them if there is room. */
LINATTN_API int64_t linattn_encode(const linattn_model* model, const char* text, int64_t bytes, int32_t* tokens,
                                   int64_t room);
/* The bytes of a token's text, and their number. */
LINATTN_API const char* linattn_decode(const linattn_model* model, int32_t token, int64_t* bytes);

#ifdef __cplusplus
}
#endif

#endif
