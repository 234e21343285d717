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
#define TICKS 3
#endif
#define WATCHED 2
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* ---- etcd: the number that the instance's claim stands on, 0: none; the marks of 1 and 2 */
byte held, mark[3];
/* ---- the words. A word is read, written and compared as a whole; node 0: none */
byte last_tick, last_node;
byte fence_mark, fence_node;
/* ---- the watched tick: of number 1, was it used; did the instance give it out, of either number */
bit used, given;

inline use(node, tick) {
  if
  :: node == 1 && tick == WATCHED -> assert(!used); used = 1
  :: else
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
     atomic { tick_seen = last_tick; node_seen = last_node };
#endif
#ifdef FENCE_STALE
     atomic { mark_seen = fence_mark; fence_seen = fence_node };
#endif
     do
     :: atomic {
#ifdef FENCE_STALE
          true ->
#else
          true -> mark_seen = fence_mark; fence_seen = fence_node;
#endif
          if
          :: SAME_NODE && tick_seen < HIGHEST ->
             select(first : (tick_seen + 1) .. HIGHEST) /* any clock */
          :: else -> first = 0
          fi;
#ifndef FENCE_STALE
          mark_seen = 0; fence_seen = 0
#endif
        }
        /* Frozen here for any time, then the swap. */
        if
        :: first == 0 -> break /* refused: nothing changes */
        :: atomic { first != 0 && UNCHANGED ->
             last_tick = first;
#ifdef NO_SWAP
             last_node = node_seen;
#endif
             assert(!given || first > WATCHED);
             if :: first == WATCHED -> given = 1 :: else fi;
             use(node_seen, first) }
           break
        :: atomic { first != 0 && !(UNCHANGED) ->
             tick_seen = last_tick; first = 0;
#ifndef NODE_NOT_IN_WORDS
             node_seen = last_node;
#endif
#ifdef FENCE_STALE
             fence_seen = node_seen
#endif
           }
        fi
     od;
     atomic { tick_seen = 0; node_seen = 0; mark_seen = 0; fence_seen = 0; first = 0 }
  od
}
