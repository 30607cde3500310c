/* Owns the placement decision. Invariant: no I/O, no clock, no memory beyond the arguments: the same
 * arguments give the same answer, so that policies are tested by outcome on a simulated fleet. */
#include "master/scheduler.h"

#include <string.h>

const char *sched_reject_name(enum sched_reject r)
{
    static const char *const names[SCHED_REASONS] = {
        [SCHED_FITS] = "fits",         [SCHED_UNHEALTHY] = "unhealthy",
        [SCHED_CORDONED] = "cordoned", [SCHED_DRAINING] = "draining",
        [SCHED_PRESSURE] = "pressure", [SCHED_CLASS] = "class",
        [SCHED_LABEL] = "label",       [SCHED_SANDBOXES] = "sandboxes",
        [SCHED_MEMORY] = "memory",     [SCHED_CPU] = "cpu",
        [SCHED_EXCLUDED] = "tried",    [SCHED_UNFIT] = "unfit: self-test or network failed",
    };
    return r < SCHED_REASONS ? names[r] : "unknown";
}

uint64_t sched_hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3u;
    return h ? h : 1;
}

static uint32_t team_count(const struct sched_node *n, uint64_t team)
{
    for (size_t i = 0; i < SCHED_TEAMS; i++) {
        size_t at = (team + i) % SCHED_TEAMS;
        if (n->teams[at].team == team)
            return n->teams[at].count;
        if (!n->teams[at].team)
            return 0;
    }
    return 0;
}

void sched_node_team_set(struct sched_node *n, uint64_t team, uint32_t count)
{
    for (size_t i = 0; i < SCHED_TEAMS; i++) {
        size_t at = (team + i) % SCHED_TEAMS;
        if (n->teams[at].team == team || !n->teams[at].team) {
            n->teams[at].team = team;
            n->teams[at].count = count;
            return;
        }
    }
    /* Full: this team is not spread on this node, which costs balance and nothing else. */
}

void sched_node_account(struct sched_node *n, const struct sched_ask *ask, int sign)
{
    n->reserved_memory += sign * ask->memory;
    n->reserved_nominal += sign * ask->nominal;
    n->reserved_cpu += sign * ask->cpu;
    n->reserved_count += sign;
    uint32_t had = team_count(n, ask->team_hash);
    sched_node_team_set(n, ask->team_hash, sign > 0 ? had + 1 : had ? had - 1 : 0);
}

static bool has_template(const struct sched_node *n, uint64_t t)
{
    size_t low = 0, high = n->template_count;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (n->templates[mid] < t)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n->template_count && n->templates[low] == t;
}

static bool has_labels(const struct sched_node *n, const struct sched_ask *ask)
{
    for (size_t i = 0; i < ask->label_count; i++) {
        bool found = false;
        for (size_t k = 0; k < n->label_count && !found; k++)
            found = n->labels[k] == ask->labels[i];
        if (!found)
            return false;
    }
    return true;
}

static enum sched_reject node_check(const struct sched_node *n, const struct sched_ask *ask,
                                    const struct sched_policy *p)
{
    if (!n->healthy)
        return SCHED_UNHEALTHY;
    if (n->cordoned)
        return SCHED_CORDONED;
    if (n->draining)
        return SCHED_DRAINING;
    if (n->pressure)
        return SCHED_PRESSURE;
    if (n->unfit)
        return SCHED_UNFIT;
    if (ask->class_hash && ask->class_hash != n->class_hash)
        return SCHED_CLASS;
    if (ask->label_count && !has_labels(n, ask))
        return SCHED_LABEL;
    if (n->cap_count > 0 && n->reserved_count >= n->cap_count)
        return SCHED_SANDBOXES;
    if (n->reserved_memory + ask->memory > n->cap_memory ||
        n->reserved_nominal + ask->nominal > n->cap_memory * p->ratio_memory / 1000)
        return SCHED_MEMORY;
    if (n->reserved_cpu + ask->cpu > n->cap_cpu * p->ratio_cpu / 1000)
        return SCHED_CPU;
    return SCHED_FITS;
}

static int64_t node_score(const struct sched_node *n, const struct sched_ask *ask,
                          const struct sched_policy *p, bool *local)
{
    const struct sched_weights *w = &p->weights;
    int64_t score = 0;
    *local = has_template(n, ask->template_hash);
    if (*local)
        score += w->template_local + (n->warm ? w->warm : 0);
    int64_t memory = n->cap_memory - n->reserved_memory - ask->memory;
    int64_t cpu_cap = n->cap_cpu * p->ratio_cpu / 1000, cpu = cpu_cap - n->reserved_cpu - ask->cpu;
    /* The scarcer of the two decides; in thousandths of the weight, so that small fleets are balanced finely
     * too. */
    int64_t room_memory = n->cap_memory > 0 ? memory * 1000 / n->cap_memory : 0;
    int64_t room_cpu = cpu_cap > 0 ? cpu * 1000 / cpu_cap : 0;
    score = score * 1000 + w->room * (room_memory < room_cpu ? room_memory : room_cpu);
    int64_t same = team_count(n, ask->team_hash);
    return score - w->spread * 1000 * same / (same + 4);
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static size_t choice_insert(struct sched_choice *out, size_t have, size_t max, const struct sched_choice *c)
{
    if (have == max && (max == 0 || out[max - 1].score >= c->score))
        return have;
    size_t at = have < max ? have : max - 1;
    while (at > 0 && out[at - 1].score < c->score) {
        out[at] = out[at - 1];
        at--;
    }
    out[at] = *c;
    return have < max ? have + 1 : max;
}

size_t sched_pick(const struct sched_node *nodes, size_t n, const struct sched_ask *ask,
                  const struct sched_policy *policy, const bool *excluded, uint64_t random,
                  struct sched_choice *out, size_t max, uint32_t rejected[SCHED_REASONS])
{
    if (rejected)
        memset(rejected, 0, SCHED_REASONS * sizeof *rejected);
    if (!n)
        return 0;
    size_t start = mix(random) % n, have = 0, seen = 0, local_seen = 0;
    size_t sample = policy->weights.sample > 0 ? (size_t)policy->weights.sample : n;
    for (size_t i = 0; i < n; i++) {
        size_t at = start + i < n ? start + i : start + i - n;
        enum sched_reject why =
            excluded && excluded[at] ? SCHED_EXCLUDED : node_check(&nodes[at], ask, policy);
        if (rejected)
            rejected[why]++;
        if (why)
            continue;
        struct sched_choice c = {.node = at};
        c.score = node_score(&nodes[at], ask, policy, &c.template_local);
        have = choice_insert(out, have, max, &c);
        local_seen += c.template_local;
        /* A full sample ends the search once it has a node with the template; a rare template is looked for
         * further. */
        if (++seen >= sample && (local_seen || seen >= 8 * sample))
            break;
    }
    return have;
}
