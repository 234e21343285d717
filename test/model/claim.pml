/* Claim, raise, publish: rules 1 to 7 of src/core/lease.hpp, on one worker number W.

   The question: two instances claim W again and again, on a network that loses and delays. Is any
   tick of W used twice?

   etcd is one atomic store (what raft makes of it). For the rest, the worst:
     - A clock reading is any tick: wrong, stepped, or old since its reader was frozen.
     - The lease under a claim ends at any moment (it expires, etcd drops it early, somebody revokes
       it); the holder may not know.
     - A request is applied at any later time or never, also after its sender has given it up and gone
       on. A reply arrives at any later time or never.
     - An instance crashes at any moment, and does nothing for any time.

   One tick is watched, with ticks before and after it; backends use it as soon as they may. To use
   it later or not at all would change nothing else.

   Lease ids are not counted. An instance goes on with a fresh one for each claim and never comes back
   to an old one (rule 5), so that what counts is whether the claim key hangs on the lease that the
   instance has now, on that of a life before a crash, or on none.

   Variants: -D of a name in an #ifdef below; run.sh lists them. */

#ifndef MARKS
#define MARKS 3             /* ticks and marks are 1 .. MARKS */
#endif
#define WATCHED 2
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* ---- etcd: the claim key of W hangs on the present lease of instance 1 or 2, on the lease of a
   life that has crashed (DEAD), or is absent (0); the mark (0: absent) */
#define DEAD 3
byte owner, mark;

/* ---- instances 1 and 2: the fields of Lease */
#define IDLE 0              /* kReading, kGranting */
#define CLAIMING 1          /* kClaiming */
#define HOLDING 2           /* kHolding. The witness of rule 9 is in restore.pml */
#define REVOKING 3          /* kRevoking: goes on only when etcd has confirmed it */
byte state[3];
byte floor_[3];             /* floor_, until the claim is installed */
bit stored[3];              /* stored_ is not 0. That a raise also compares with it is rule 8 */
bit installed[3];           /* installed_. From then on confirmed_ and published_ are the fence */
/* ---- the request under way, Claim or Raise by state, and what its reply says */
#define SENT 1
#define GOOD 2              /* the claim is mine; the mark is confirmed */
#define AGAIN 3             /* mine, but the compare of the mark did not hold */
#define LOST 4              /* the claim key is not on my lease */
byte way[3], asked[3], found[3];
/* ---- a request that was given up and may be applied all the same; one at a time */
byte late;                  /* CLAIMING, HOLDING (a raise); 0: none */
byte late_lease;            /* whose lease: 1, 2, DEAD; 0: one that stands nowhere any more */
byte late_asked; bit late_stored;
byte late_of, late_way, late_found; /* ANY_REPLY only: whose it was, and what its reply says */
/* ---- shared memory: ticks above start, up to fence. barred: start is not below the watched tick */
bit barred[3]; byte fence[3];
/* ---- who used the watched tick; DEAD: somebody that has crashed since */
byte user;

/* Generator::issue() of any backend. `last` keeps an instance from using a tick twice itself. */
#ifdef FENCE_IGNORED
#define FENCE_ALLOWS(i) (fence[i] != 0)
#else
#define FENCE_ALLOWS(i) (WATCHED <= fence[i])
#endif
inline issue(i) {
  if
  :: !barred[i] && FENCE_ALLOWS(i) && user != i -> assert(user == 0); user = i
  :: else
  fi
}

/* Lease::publication() of a confirmed mark: Generator::install() or raise_fence(). */
inline publish(i, confirmed) {
  if
  :: !installed[i] ->
     if :: floor_[i] >= WATCHED -> barred[i] = 1 :: else fi;
     floor_[i] = 0; installed[i] = 1
  :: else
  fi;
  fence[i] = MAX(fence[i], confirmed);
  issue(i)
}

inline nothing_under_way(i) { way[i] = 0; asked[i] = 0; found[i] = 0 }
inline nothing_late() {
  late = 0; late_of = 0; late_lease = 0; late_asked = 0; late_stored = 0; late_way = 0; late_found = 0
}
/* Its lease is never used again. */
inline forget(i) {
  floor_[i] = 0; stored[i] = 0; installed[i] = 0; nothing_under_way(i);
  if :: late_lease == i -> late_lease = 0 :: else fi
}

inline end_claim() {
  owner = 0;
#ifdef MARK_IN_LEASE
  mark = 0
#endif
}

/* Rule 1: one transaction. */
inline etcd_claim(l, reply, as_found) {
  if :: owner == 0 && l != 0 -> owner = l :: else fi;
  reply = (owner == l && l != 0 -> GOOD : LOST);
  as_found = mark
}

/* Rules 1 and 2, and rule 3 in the failure branch. Nothing stored: the compare is that there is no
   mark. */
#ifdef NO_LEASE_COMPARE
#define LEASE_IS(l) (true)
#else
#define LEASE_IS(l) (owner == l && l != 0)
#endif
#ifdef NO_LESS_COMPARE
#define LESS(v, was_stored) (true)
#else
#define LESS(v, was_stored) (was_stored -> mark < v : mark == 0)
#endif
inline etcd_raise(l, v, was_stored, reply) {
  if
  :: LEASE_IS(l) && LESS(v, was_stored) -> mark = v; reply = GOOD
#ifdef SUCCESS_OF_ANOTHER
  :: else -> reply = (mark >= v -> GOOD : (LEASE_IS(l) -> AGAIN : LOST))
#else
  :: else -> reply = (LEASE_IS(l) -> (mark >= v -> GOOD : AGAIN) : LOST)
#endif
  fi
}

inline send_claim(i) {
  state[i] = CLAIMING; way[i] = SENT;
#ifdef MARK_READ_BEFORE
  floor_[i] = mark
#endif
}
/* Lease::on_claimed(). Rule 6: the floor is the mark as read in the claim. */
inline on_claimed(i, reply, as_found) {
  if
  :: reply == GOOD ->
     state[i] = HOLDING; stored[i] = (as_found != 0);
#ifdef MARK_READ_BEFORE
#elif defined(START_AT_CLOCK)
     floor_[i] = 0;
#else
     floor_[i] = as_found;
#endif
     nothing_under_way(i)
  :: else -> forget(i); state[i] = IDLE
  fi
}

inline send_raise(i, clock) {
  asked[i] = MAX(MAX((installed[i] -> fence[i] : 0), floor_[i]), clock); way[i] = SENT;
#ifdef PUBLISH_FIRST
  publish(i, asked[i])
#endif
}
/* Lease::on_raised(). */
inline on_raised(i, reply) {
  if
  :: reply == GOOD -> stored[i] = 1; publish(i, asked[i]); nothing_under_way(i)
  :: reply == AGAIN -> stored[i] = 1; nothing_under_way(i)
  :: reply == LOST -> /* rule 7: what is reserved goes on to be used */
     forget(i); state[i] = IDLE
  fi
}

/* No answer in time, or none any more. Only what etcd has not seen yet can still be applied. */
inline give_up(i) {
  if
  :: way[i] == SENT && late == 0 ->
     if
     ::
#ifdef ANY_REPLY
        late_of = i;
#endif
        late = state[i]; late_lease = i; late_asked = asked[i]; late_stored = stored[i]
     :: skip
     fi
#ifdef ANY_REPLY
  :: way[i] > SENT && late == 0 ->
     late = state[i]; late_of = i; late_lease = i; late_way = way[i]; late_found = found[i]
#endif
  :: else
  fi;
  nothing_under_way(i)
}

/* Of the postmaster. Its claim stands until the lease ends. */
inline crash(i) {
  give_up(i);
  if :: late_lease == i -> late_lease = DEAD :: else fi;
  if :: owner == i -> owner = DEAD :: else fi;
  forget(i); state[i] = IDLE; barred[i] = 0; fence[i] = 0;
  if :: user == i -> user = DEAD :: else fi
}

active proctype world() {
  byte clock;
end:
  do
  :: d_step { owner != 0 -> end_claim() }

#define INSTANCE(i) \
  :: d_step { state[i] == IDLE -> send_claim(i) } \
  :: d_step { state[i] == CLAIMING && way[i] == SENT -> etcd_claim(i, way[i], found[i]) } \
  :: d_step { state[i] == CLAIMING && way[i] > SENT -> on_claimed(i, way[i], found[i]) } \
  :: atomic { state[i] == CLAIMING -> give_up(i); state[i] = REVOKING } \
  :: d_step { state[i] == REVOKING -> if :: owner == i -> end_claim() :: else fi; \
              forget(i); state[i] = IDLE } \
  :: atomic { state[i] == HOLDING && way[i] == 0 -> \
              select(clock : 1 .. MARKS); d_step { send_raise(i, clock); clock = 0 } } \
  :: d_step { state[i] == HOLDING && way[i] == SENT -> \
              etcd_raise(i, asked[i], stored[i], way[i]) } \
  :: d_step { state[i] == HOLDING && way[i] > SENT -> on_raised(i, way[i]) } \
  :: atomic { state[i] == HOLDING && way[i] != 0 -> give_up(i) } \
  :: atomic { state[i] != IDLE || fence[i] != 0 -> crash(i) }
  INSTANCE(1)
  INSTANCE(2)

  /* What was given up is applied after all. Rule 4: its reply is dropped. */
#ifndef ANY_REPLY
  :: d_step { late == CLAIMING -> etcd_claim(late_lease, late_way, late_found); nothing_late() }
  :: d_step { late == HOLDING ->
              etcd_raise(late_lease, late_asked, late_stored, late_way); nothing_late() }
#else
  :: d_step { late == CLAIMING && late_way == 0 -> etcd_claim(late_lease, late_way, late_found) }
  :: d_step { late == HOLDING && late_way == 0 ->
              etcd_raise(late_lease, late_asked, late_stored, late_way) }
  :: d_step { late == CLAIMING && late_way != 0 && state[late_of] == CLAIMING && way[late_of] != 0 ->
              on_claimed(late_of, late_way, late_found); nothing_late() }
  :: d_step { late == HOLDING && late_way != 0 && state[late_of] == HOLDING && way[late_of] != 0 ->
              on_raised(late_of, late_way); nothing_late() }
#endif
  od
}
