/* SPDX-License-Identifier: MIT */
/*
 * replay_script.c: a script's text read into statements (docs/replay.md). One table says what each
 * verb takes; whatever does not fit is told by file, line, what was required and what was found.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"

enum { WORDS = 96, LINE = 1024 };

const char *const replay_mistakes[MISTAKES] = {
    [MISTAKE_NONE] = "none",
    [MISTAKE_CONSUMER_FIRST] = "consumer_first",
    [MISTAKE_PUBLISH_TWICE] = "publish_twice",
    [MISTAKE_OLD_STEP] = "old_step",
    [MISTAKE_LAYOUT] = "layout",
    [MISTAKE_PAGE_SIZE] = "page_size",
    [MISTAKE_SPLIT] = "split",
};

typedef struct reader {
    replay_script *s;
    int32_t line;
    char *word[WORDS];
    int words;
} reader;

int replay_script_error(const replay_script *s, int32_t line, const char *what,
                        const char *required, const char *found, ...) {
    char text[256];
    va_list args;
    va_start(args, found);
    vsnprintf(text, sizeof text, found, args);
    va_end(args);
    return fail("%s:%d: %s: required %s, found %s", s->file, (int)line, what, required, text);
}

#define WRONG_AT(r, what, required, ...)                                                           \
    replay_script_error((r)->s, (r)->line, what, required, __VA_ARGS__)

static int read_number(const reader *r, const char *what, const char *text, int64_t low,
                       int64_t high, int64_t *out) {
    char *end, range[64];
    errno = 0;
    *out = strtoll(text, &end, 10);
    snprintf(range, sizeof range, "%" PRId64 " .. %" PRId64, low, high);
    if (errno || end == text || *end || *out < low || *out > high)
        return WRONG_AT(r, what, range, "'%s'", text);
    return STATUS_GOOD;
}

/* ---- fields: key=value --------------------------------------------------------------------- */

enum { FIELD_I32, FIELD_I64, FIELD_LIST, FIELD_CHOICE };

typedef struct field {
    const char *key;
    int kind;
    int64_t low, high;
    size_t at;          /* in the script */
    size_t count;       /* FIELD_LIST: where its length lies */
    const char *choice; /* FIELD_CHOICE: words parted by |, from 0 on */
} field;

#define AT(name) offsetof(replay_script, name)
static const field model_fields[] = {
    {"heads", FIELD_I32, 0, 1 << 20, AT(heads), 0, NULL},
    {"dim", FIELD_I32, 64, 128, AT(dim), 0, NULL},
    {"topk", FIELD_I32, 0, 1 << 20, AT(topk), 0, NULL},
    {"blocks", FIELD_I32, 0, 1 << 20, AT(blocks), 0, NULL},
    {"block", FIELD_I32, 0, 1 << 20, AT(block_size), 0, NULL},
    {"source", FIELD_I32, -1, REPLAY_LAYERS - 1, AT(source), 0, NULL},
    {"ratios", FIELD_LIST, 0, 1 << 20, AT(ratio), AT(layers), NULL},
    {"owners", FIELD_LIST, 0, REPLAY_LAYERS - 1, AT(owner), AT(owners), NULL},
    {"index", FIELD_LIST, 0, REPLAY_LAYERS - 1, AT(index), AT(indexes), NULL},
    {"values", FIELD_CHOICE, 0, 0, AT(values), 0, "plain|ties|nan"},
    {"numerics", FIELD_CHOICE, 0, 0, AT(numerics), 0, "|exact|bf16"},
    {"context_parallel", FIELD_I32, 0, 1 << 20, AT(context_parallel), 0, NULL},
    {"decode_parallel", FIELD_I32, 0, 1 << 20, AT(decode_parallel), 0, NULL},
    {NULL, 0, 0, 0, 0, 0, NULL}};
static const field cache_fields[] = {{"positions", FIELD_I64, 8, 1 << 24, AT(positions), 0, NULL},
                                     {"page_size", FIELD_I32, 0, 1 << 20, AT(page_size), 0, NULL},
                                     {"page_align", FIELD_I32, 0, 1 << 20, AT(page_align), 0, NULL},
                                     {"seed", FIELD_I64, 0, INT64_MAX, AT(seed), 0, NULL},
                                     {NULL, 0, 0, 0, 0, 0, NULL}};
static const field limit_fields[] = {
    {"requests", FIELD_I32, 1, REPLAY_REQUESTS, AT(max_requests), 0, NULL},
    {"tokens", FIELD_I32, 1, 1 << 16, AT(max_tokens), 0, NULL},
    {"drafts", FIELD_I32, 0, 255, AT(drafts), 0, NULL},
    {"context", FIELD_I64, 1, 1 << 24, AT(max_context), 0, NULL},
    {NULL, 0, 0, 0, 0, 0, NULL}};

static int read_list(const reader *r, const field *f, char *text) {
    int32_t *out = (int32_t *)(void *)((char *)r->s + f->at);
    int32_t *count = (int32_t *)(void *)((char *)r->s + f->count);
    *count = 0;
    for (char *next, *part = text; part && *part; part = next) {
        next = strchr(part, ',');
        if (next)
            *next++ = 0;
        int64_t value;
        if (*count == REPLAY_LAYERS)
            return WRONG_AT(r, f->key, "at most 64 numbers", "more");
        if (read_number(r, f->key, part, f->low, f->high, &value) != STATUS_GOOD)
            return STATUS_BAD;
        out[(*count)++] = (int32_t)value;
    }
    return STATUS_GOOD;
}

static int read_choice(const reader *r, const field *f, const char *text) {
    int32_t *out = (int32_t *)(void *)((char *)r->s + f->at), n = 0;
    for (const char *c = f->choice; c; n++) {
        const char *end = strchr(c, '|');
        size_t length = end ? (size_t)(end - c) : strlen(c);
        if (length && strlen(text) == length && strncmp(c, text, length) == 0) {
            *out = n;
            return STATUS_GOOD;
        }
        c = end ? end + 1 : NULL;
    }
    return WRONG_AT(r, f->key, f->choice + (*f->choice == '|'), "'%s'", text);
}

static int read_field(const reader *r, const field *fields, char *word) {
    char *value = strchr(word, '='), keys[256] = "";
    if (value)
        *value++ = 0;
    for (const field *f = fields; f->key; f++) {
        int64_t number;
        snprintf(keys + strlen(keys), sizeof keys - strlen(keys), "%s%s=", f == fields ? "" : ", ",
                 f->key);
        if (!value || strcmp(f->key, word) != 0)
            continue;
        if (f->kind == FIELD_LIST)
            return read_list(r, f, value);
        if (f->kind == FIELD_CHOICE)
            return read_choice(r, f, value);
        if (read_number(r, f->key, value, f->low, f->high, &number) != STATUS_GOOD)
            return STATUS_BAD;
        if (f->kind == FIELD_I32)
            *(int32_t *)(void *)((char *)r->s + f->at) = (int32_t)number;
        else
            *(int64_t *)(void *)((char *)r->s + f->at) = number;
        return STATUS_GOOD;
    }
    return WRONG_AT(r, r->word[0], keys, "'%s'", word);
}

/* ---- the head ------------------------------------------------------------------------------ */

enum { HEAD_MODEL, HEAD_CACHE, HEAD_LIMITS, HEAD_REFUSED, HEADS };

static int read_head(reader *r, int head) {
    static const char *const words[] = {"model", "cache", "limits", "refused"};
    static const field *const fields[] = {model_fields, cache_fields, limit_fields};
    replay_script *s = r->s;
    if (s->head_line[head])
        return WRONG_AT(r, words[head], "one such line", "another in line %d",
                        (int)s->head_line[head]);
    if (s->statements)
        return WRONG_AT(r, words[head], "it before anything happens", "line %d before it",
                        (int)s->statement[0].line);
    s->head_line[head] = r->line;
    if (head == HEAD_REFUSED) {
        if (r->words != 2 || strlen(r->word[1]) >= sizeof s->refused)
            return WRONG_AT(r, "refused", "the id of a requirement", "%d words", r->words - 1);
        strcpy(s->refused, r->word[1]);
        return STATUS_GOOD;
    }
    for (int i = 1; i < r->words; i++)
        if (read_field(r, fields[head], r->word[i]) != STATUS_GOOD)
            return STATUS_BAD;
    return STATUS_GOOD;
}

/* ---- verbs --------------------------------------------------------------------------------- */

typedef struct verb_form {
    const char *name;
    int names;            /* requests that it names, the second behind "from" */
    const char *key[2];   /* fields; "" is a bare number */
    int64_t low[2], high; /* low -1: it may be missing and is then 0 */
} verb_form;

static const verb_form forms[VERBS] = {
    [VERB_ARRIVE] = {"arrive", 1, {"prompt", "seed"}, {1, 0}, INT32_MAX},
    [VERB_SHARE] = {"share", 2, {"tokens", NULL}, {1, 0}, INT32_MAX},
    [VERB_PREFILL] = {"prefill", 1, {"chunk", "tokens"}, {-1, -1}, INT32_MAX},
    [VERB_INSERT] = {"insert", 1, {"chunk", "tokens"}, {-1, -1}, INT32_MAX},
    [VERB_STEP] = {"step", 0, {NULL, NULL}, {0, 0}, 0},
    [VERB_ACCEPT] = {"accept", 1, {"", NULL}, {0, 0}, 255},
    [VERB_PREEMPT] = {"preempt", 1, {NULL, NULL}, {0, 0}, 0},
    [VERB_RESUME] = {"resume", 1, {NULL, NULL}, {0, 0}, 0},
    [VERB_SAVE] = {"save", 1, {NULL, NULL}, {0, 0}, 0},
    [VERB_RESTORE] = {"restore", 1, {NULL, NULL}, {0, 0}, 0},
    [VERB_FINISH] = {"finish", 1, {NULL, NULL}, {0, 0}, 0},
    [VERB_AGAIN] = {"again", 0, {"", NULL}, {1, 0}, 1000},
    [VERB_WRONG] = {"wrong", 0, {NULL, NULL}, {0, 0}, 0},
};

static int read_name(const reader *r, const char *text, int32_t *out) {
    replay_script *s = r->s;
    size_t length = strcspn(text, ":=+");
    if (length == 0 || length >= REPLAY_NAME || text[length])
        return WRONG_AT(r, r->word[0], "a request's name of 1 .. 15 characters", "'%s'", text);
    for (*out = 0; *out < s->names; ++*out)
        if (strcmp(s->name[*out], text) == 0)
            return STATUS_GOOD;
    if (s->names == REPLAY_REQUESTS)
        return WRONG_AT(r, r->word[0], "at most 64 names of requests", "'%s' as well", text);
    strcpy(s->name[s->names++], text);
    return STATUS_GOOD;
}

static int read_entry(const reader *r, char *word, replay_entry *e) {
    char *count = strchr(word, ':'), *drafts = count ? strchr(count, '+') : NULL;
    int64_t sure = 0, guessed = 0;
    if (!count)
        return WRONG_AT(r, "step", "NAME:TOKENS or NAME:TOKENS+DRAFTS", "'%s'", word);
    *count++ = 0;
    if (drafts)
        *drafts++ = 0;
    if (read_name(r, word, &e->request) != STATUS_GOOD ||
        read_number(r, "step", count, 0, 1 << 16, &sure) != STATUS_GOOD ||
        (drafts && read_number(r, "step", drafts, 0, 255, &guessed) != STATUS_GOOD))
        return STATUS_BAD;
    e->count = (int32_t)sure;
    e->drafts = (int32_t)guessed;
    return STATUS_GOOD;
}

static int read_step(reader *r, replay_statement *at) {
    replay_script *s = r->s;
    size_t room = (size_t)(s->entries + r->words) * sizeof *s->entry;
    replay_entry *grown = realloc(s->entry, room);
    if (!grown)
        return fail("%s: no memory for its steps", s->file);
    s->entry = grown;
    at->entry = s->entries;
    for (int i = 1; i < r->words; i++, at->entries++) {
        replay_entry *e = &s->entry[s->entries];
        if (read_entry(r, r->word[i], e) != STATUS_GOOD)
            return STATUS_BAD;
        for (int32_t k = at->entry; k < s->entries; k++)
            if (s->entry[k].request == e->request)
                return WRONG_AT(r, "step", "each request once", "%s again", s->name[e->request]);
        s->entries++;
    }
    return STATUS_GOOD;
}

static int read_mistake(const reader *r, replay_statement *at) {
    for (int32_t i = 1; i < MISTAKES && r->words == 2; i++)
        if (strcmp(replay_mistakes[i], r->word[1]) == 0) {
            at->value[0] = i;
            return STATUS_GOOD;
        }
    return WRONG_AT(r, "wrong",
                    "consumer_first, publish_twice, old_step, layout, page_size or split", "'%s'",
                    r->words > 1 ? r->word[1] : "");
}

static int read_values(const reader *r, const verb_form *form, int first, replay_statement *at) {
    int seen[2] = {0, 0};
    for (int i = first; i < r->words; i++) {
        int k = 0;
        size_t length = 0;
        for (; k < 2 && form->key[k]; k++) {
            length = strlen(form->key[k]);
            if (!length ||
                (strncmp(r->word[i], form->key[k], length) == 0 && r->word[i][length] == '='))
                break;
        }
        if (k == 2 || !form->key[k] || seen[k]++)
            return WRONG_AT(r, form->name, "what docs/replay.md says it takes", "'%s'", r->word[i]);
        const char *what = length ? form->key[k] : form->name;
        if (read_number(r, what, r->word[i] + length + (length > 0),
                        form->low[k] < 0 ? 1 : form->low[k], form->high,
                        &at->value[k]) != STATUS_GOOD)
            return STATUS_BAD;
    }
    for (int k = 0; k < 2 && form->key[k]; k++)
        if (!seen[k] && form->low[k] >= 0)
            return WRONG_AT(r, form->name, form->key[k][0] ? form->key[k] : "a number", "none");
    return STATUS_GOOD;
}

static int read_verb(reader *r, int32_t verb) {
    const verb_form *form = &forms[verb];
    replay_script *s = r->s;
    replay_statement *at = &s->statement[s->statements];
    *at = (replay_statement){.verb = verb, .line = r->line, .request = -1, .other = -1};
    int next = 1;
    if (form->names) {
        if (r->words < (form->names == 2 ? 4 : 2) ||
            (form->names == 2 && strcmp(r->word[2], "from") != 0))
            return WRONG_AT(r, form->name, form->names == 2 ? "NAME from NAME" : "a request's name",
                            "%d words", r->words - 1);
        if (read_name(r, r->word[1], &at->request) != STATUS_GOOD ||
            (form->names == 2 && read_name(r, r->word[3], &at->other) != STATUS_GOOD))
            return STATUS_BAD;
        next = form->names == 2 ? 4 : 2;
    }
    s->statements++;
    if (verb == VERB_STEP)
        return read_step(r, at);
    if (verb == VERB_WRONG)
        return read_mistake(r, at);
    return read_values(r, form, next, at);
}

static int read_line(reader *r) {
    static const char *const heads[HEADS] = {"model", "cache", "limits", "refused"};
    for (int i = 0; i < HEADS; i++)
        if (strcmp(r->word[0], heads[i]) == 0)
            return read_head(r, i);
    for (int32_t i = 0; i < VERBS; i++)
        if (strcmp(r->word[0], forms[i].name) == 0)
            return read_verb(r, i);
    return WRONG_AT(r, "line", "a word of docs/replay.md", "'%s'", r->word[0]);
}

/* Words of a line, cut in place. */
static int cut_words(reader *r, char *line) {
    char *save;
    line[strcspn(line, "#")] = 0;
    r->words = 0;
    for (char *w = strtok_r(line, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
        if (r->words == WORDS)
            return WRONG_AT(r, "line", "at most 96 words", "more");
        r->word[r->words++] = w;
    }
    return STATUS_GOOD;
}

static int read_lines(reader *r, const char *text) {
    while (*text) {
        size_t length = strcspn(text, "\n");
        char line[LINE];
        r->line++;
        if (length >= LINE)
            return WRONG_AT(r, "line", "at most 1023 bytes", "%zu", length);
        memcpy(line, text, length);
        line[length] = 0;
        text += length + (text[length] == '\n');
        if (cut_words(r, line) != STATUS_GOOD || (r->words && read_line(r) != STATUS_GOOD))
            return STATUS_BAD;
    }
    return STATUS_GOOD;
}

/* `again` and `wrong` are about the next statement: one of steps, or the other of the two. */
static int check_prefixes(const replay_script *s) {
    for (int32_t i = 0; i < s->statements; i++) {
        int32_t verb = s->statement[i].verb;
        int32_t next = i + 1 < s->statements ? s->statement[i + 1].verb : VERBS;
        if (verb != VERB_AGAIN && verb != VERB_WRONG)
            continue;
        if (next != VERB_PREFILL && next != VERB_INSERT && next != VERB_STEP &&
            next != (verb == VERB_AGAIN ? VERB_WRONG : VERB_AGAIN))
            return replay_script_error(s, s->statement[i].line, forms[verb].name,
                                       "step, prefill or insert behind it", "%s",
                                       next < VERBS ? forms[next].name : "the end");
    }
    return STATUS_GOOD;
}

static int check_head(const reader *r) {
    const replay_script *s = r->s;
    if (!s->head_line[HEAD_MODEL])
        return WRONG_AT(r, "script", "a model line", "none");
    if (s->dim != 64 && s->dim != 128)
        return replay_script_error(s, s->head_line[HEAD_MODEL], "dim", "64 or 128", "%d",
                                   (int)s->dim);
    if (s->refused[0] && s->statements)
        return replay_script_error(s, s->statement[0].line, "line",
                                   "nothing behind `refused': creation fails", "a statement");
    return check_prefixes(s);
}

int replay_script_read(replay_script *s, const char *file, const char *text) {
    reader r = {.s = s};
    int32_t lines = 1;
    *s = (replay_script){.file = file,
                         .heads = 4,
                         .dim = 64,
                         .topk = 24,
                         .blocks = 16,
                         .block_size = 8,
                         .source = -1,
                         .numerics = TAMIS_NUMERICS_EXACT,
                         .context_parallel = 1,
                         .decode_parallel = 1,
                         .positions = 4096,
                         .page_size = 16,
                         .page_align = 16,
                         .max_requests = 16,
                         .max_tokens = 1024,
                         .drafts = 3,
                         .max_context = 1024};
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    s->statement = calloc((size_t)lines, sizeof *s->statement);
    if (!s->statement)
        return fail("%s: no memory for %d lines", file, (int)lines);
    int status = read_lines(&r, text);
    return status == STATUS_GOOD ? check_head(&r) : status;
}

void replay_script_free(replay_script *s) {
    free(s->statement);
    free(s->entry);
}
