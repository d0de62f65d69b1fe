"""Tricks: a sequence of odd calls, eight times, and then memory is taken as in the family memory, with the same verdict."""

from suite import memory
from suite.cases import Case

TRICKS = {
    "free_twice": "frees everything three times",
    "free_inside": "frees addresses inside and behind an allocation",
    "free_by_other_call": "frees with the call of another kind of memory",
    "free_ordered_twice": "frees pool memory twice in order, once plainly",
    "free_after_reset": "frees what a reset of the context has taken",
    "free_race": "six threads free one pointer",
    "reuse_race": "addresses are given again while their last free returns",
    "release_twice": "releases a handle three times",
    "release_while_mapped": "releases twice and unmaps in parts",
    "retain_and_release": "releases more references than it has",
    "export_and_forget": "imports its own memory when nothing else holds it",
    "ipc_own": "opens and closes its own IPC handle",
    "array_twice": "destroys an array twice, also as another kind",
    "unload_twice": "frees a module's variable, unloads twice",
    "pool_in_use_destroyed": "trims and destroys a pool in use",
    "pool_peaks_reset": "resets a pool's peaks and raises its threshold",
    "capture_abandoned": "abandons a capture that allocates",
    "capture_frees_others": "captures the free of plain memory and replays it",
    "graph_freed_outside": "frees a graph's memory outside of it, trims twice",
    "context_freed_elsewhere": "frees a context's memory from another and after its end",
    "managed_odd_frees": "frees managed memory in stream order",
    "nothing_at_all": "sizes and pointers of zero",
    "threads_cancelled": "cancels threads in the middle of calls",
    "signals_in_calls": "signals every 50 us while it takes and frees",
    "limits_up_and_down": "raises and lowers stack limits, some refused",
}
# After a trick memory is taken in these ways by turns: an account that was confused in one currency is used in another.
THEN = ("alloc", "async", "created", "module", "array", "graph", "managed", "pitch")
SHAPES = ("one", "threads", "eight", "exec")


def cases():
    found = []
    for i, (trick, text) in enumerate(TRICKS.items()):
        for k in range(2):
            way, shape = THEN[(i + 3 * k) % len(THEN)], SHAPES[(i // 2 + k) % len(SHAPES)]
            size = ("mixed", "grains", "random")[(i + k) % 3]
            found.append(Case("tricks", f"{trick}.{way}.{shape}", f"{text}; then {memory.WAYS[way].text}, {memory.SHAPES[shape].text}",
                              lambda build, rng, c=(way, shape, size, trick): memory.check(build, rng, c[0], c[1], c[2], "calm", c[3]),
                              quick=trick == "free_twice" and k == 0))
    return found
