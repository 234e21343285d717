/* The two words of src/core/generator.hpp, while one instance changes its worker number.

   The question: backends of one instance call issue(), each frozen for any time between any two of
   its accesses, while the background worker claims number 1 or 2, raises its mark, loses it, claims
   the other or the same one again. A number that the instance does not hold is used by others, above
   its mark. Is any tick of a number used twice, and does every ID of the instance come after all that
   it gave out before?

   One atomic access is one step, and all see the steps in the same order: what acquire and release
   are for is argued in generator.cpp. A clock reading is any tick.

   Variants: -D of a name in an #ifdef below; run.sh lists them. */

#ifndef TICKS
#define TICKS 4
#endif
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* ---- etcd: the number that the instance's claim stands on, 0: none; the marks of 1 and 2 */
byte held, mark[3];
/* ---- the words. A word is read, written and compared as a whole; node 0: none */
byte last_tick, last_node;
byte fence_mark, fence_node;
/* ---- the highest tick given out by the instance; the ticks of number 1 and 2 that were used */
byte given;
bit used1[TICKS + 1], used2[TICKS + 1];

inline use(node, tick) {
  if
  :: node == 1 -> assert(!used1[tick]); used1[tick] = 1
  :: node == 2 -> assert(!used2[tick]); used2[tick] = 1
  fi
}

/* The background worker, the only one that installs and raises the fence. etcd's part is one step
   (claim.pml has it in full); the number may be lost again before any of the steps that follow. */
active proctype worker() {
  byte node, floor_, high;
end:
  do
  :: atomic { held == 0 && (mark[1] < TICKS || mark[2] < TICKS) ->
       if :: mark[1] < TICKS -> node = 1 :: mark[2] < TICKS -> node = 2 fi;
       held = node; floor_ = mark[node];
       select(high : (floor_ + 1) .. TICKS); mark[node] = high }
     /* Generator::install(): `last` first, by a swap that never lowers it; `fence` after. */
     d_step {
#ifdef START_BELOW_LAST
       last_tick = floor_;
#else
       last_tick = MAX(last_tick, floor_);
#endif
       last_node = node }
     d_step { fence_mark = high; fence_node = node; node = 0; floor_ = 0; high = 0 }
  :: atomic { held != 0 && mark[held] < TICKS ->
       select(high : (mark[held] + 1) .. TICKS); mark[held] = high }
     /* Generator::raise_fence(). A fence that was withdrawn stays so. */
     d_step { fence_mark = (fence_node != 0 -> high : 0); high = 0 }
  :: d_step { fence_node != 0 -> fence_node = 0; fence_mark = 0 } /* Generator::withdraw() */
  od
}

/* Leases end, and whoever claims a number next starts above its mark. */
active proctype others() {
end:
  do
  :: d_step { held != 0 -> held = 0 }
  :: d_step { held != 1 && mark[1] < TICKS -> mark[1]++; use(1, mark[1]) }
  :: d_step { held != 2 && mark[2] < TICKS -> mark[2]++; use(2, mark[2]) }
  od
}

#ifdef FENCE_IGNORED
#define HIGHEST TICKS
#else
#define HIGHEST mark_seen
#endif
#if defined(FENCE_WITHOUT_NODE) || defined(NODE_NOT_IN_WORDS)
#define SAME_NODE (node_seen != 0)
#else
#define SAME_NODE (node_seen != 0 && node_seen == fence_seen)
#endif
#if defined(NO_SWAP)
#define UNCHANGED true
#elif defined(NODE_NOT_IN_WORDS)
#define UNCHANGED (last_tick == tick_seen)
#else
#define UNCHANGED (last_tick == tick_seen && last_node == node_seen)
#endif

/* Generator::issue(). */
active [2] proctype backend() {
  byte tick_seen, node_seen, mark_seen, fence_seen, first;
end:
  do
  :: last_node != 0 ->
#ifdef NODE_NOT_IN_WORDS
     node_seen = last_node;
     tick_seen = last_tick;
#else
     d_step { tick_seen = last_tick; node_seen = last_node };
#endif
     d_step { mark_seen = fence_mark; fence_seen = fence_node };
     do
     :: atomic { SAME_NODE && tick_seen < HIGHEST ->
          select(first : (tick_seen + 1) .. HIGHEST) } /* any clock */
        /* frozen here, for any time; then the swap */
        if
        :: d_step { UNCHANGED ->
             last_tick = first;
#if defined(NO_SWAP)
             last_node = node_seen;
#endif
             assert(first > given); given = first;
             use(node_seen, first) }
           break
        :: d_step { !(UNCHANGED) ->
             tick_seen = last_tick;
#ifndef NODE_NOT_IN_WORDS
             node_seen = last_node;
#endif
             first = 0 }
           /* The fence is looked at anew. */
#ifdef FENCE_STALE
           fence_seen = node_seen
#else
           d_step { mark_seen = fence_mark; fence_seen = fence_node }
#endif
        fi
     :: !(SAME_NODE && tick_seen < HIGHEST) -> break /* refused: nothing changes */
     od;
     d_step { tick_seen = 0; node_seen = 0; mark_seen = 0; fence_seen = 0; first = 0 }
  od
}
