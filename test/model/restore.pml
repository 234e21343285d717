/* etcd restored from a backup: rules 8 and 9 of src/core/lease.hpp.

   The question: instances hold worker numbers; somebody takes a backup, more is confirmed, then etcd
   is restored from the backup. Is any tick of a worker number used twice?

   The world, one step of one actor at a time:
     W         the worker number that is watched. Instances 1 and 2 claim it, again and again; either
               may crash, stop cleanly, or do nothing for any time (a freeze, a partition). The lease
               under its claim may end at any moment, so a claim is always possible.
     D         a third instance that holds another number: the witness of rule 9, a true or a false
               one. It too may do nothing for any time.
     etcd      claim and mark of W, mark of D, not_before, the raft term. The backup holds all of
               them, the claim's lease included: a restored claim stands again, under the old lease.
     time      `now`, the same for all, in ticks of some 10 s. One tick stands for all milliseconds
               (and sequences) in it. Backends mint as early and as late as they may.

   What is taken for granted (each as a limit in doc/, and with a variant here that breaks it):
     - a backup is older than reserve + 10 s when it is restored                          (YOUNG)
     - a restored etcd shows a lower raft term than before, or else every holder has confirmed
       something that the backup lacks, and no file of a clean stop fits the backup   (TERM_EQUAL)
     - an answer of the old etcd and a raise that reaches the restored one are more than
       kTermFreshMs apart: restoring takes longer, and a raise on its way is not carried over
                                                                                     (SWITCHED)

   Variants: -D of one of the names in #ifdef below; run.sh lists them. */

#ifndef T
#define T 8                 /* the world ends here */
#endif
#ifndef BT
#define BT 1                /* the backup is taken at the latest then */
#endif
#define R 2                 /* snowflake.reserve */
#define P 3                 /* reserve + kForgottenMs */
#ifndef LEASES
#define LEASES 3            /* claims of W in all */
#endif
#define MAX(a, b) ((a) > (b) -> (a) : (b))

#ifdef SHORT_PAUSE
#define PAUSE 1
#else
#define PAUSE P
#endif
#ifdef YOUNG
#define AGE 0
#else
#define AGE P
#endif

/* ---- etcd, and the backup of it */
byte now = 1;
byte owner;                 /* the lease that W's claim key hangs on; 0: absent */
byte mark, dmark;
byte nb;                    /* not_before */
byte term = 2;              /* raft term. A member that lags may answer with 1, a restored etcd is at 0 */
bit up = 1;
bit taken, restored, ticked;
byte age, bowner, bmark, bnb;
bit lagged;                 /* a member answered with a stale term: once is enough */
byte leases;                /* lease ids given out: never twice, also by a restored etcd */

/* ---- instances 1 and 2: the fields of Lease */
#define IDLE 0              /* kRevoking to kClaiming: no claim */
#define WIT 1               /* kWitnessing */
#define HOLD 2              /* kHolding */
#define WARN 3              /* kWarning */
byte state[3];
byte back[3];               /* after_warning_ */
byte lease[3];              /* lease_ */
byte stored[3], conf[3];    /* stored_, confirmed_ */
byte floor_[3];             /* floor_ */
byte until[3];              /* quarantined_until_ */
byte seen[3];               /* term_ */
bit fresh[3];               /* the term was shown less than kTermFreshMs ago */
byte nbv[3];                /* not_before_ */
bit installed[3];           /* installed_ */
byte hmark[3], hterm[3];    /* the file of a clean stop: LastMark */
/* ---- their shared memory, as far as W goes: ticks above start, up to fence */
byte start[3], fence[3];
/* ---- D */
byte dstate = HOLD, dseen, dnbv; bit dlost, dfresh;

/* ---- who used the tick `now` of W; 3: an instance that has crashed since */
byte user;

/* Any mark that is not past, at most 2 x reserve ahead; or the file of the clean stop. */
#define NOT_PAST(m) ((m) > now && (m) <= now + 2 * R)
#ifdef HINT_WITHOUT_TERM
#define HINT(i) (hmark[i] != 0 && mark == hmark[i])
#else
#define HINT(i) (hmark[i] != 0 && mark == hmark[i] && term >= hterm[i])
#endif
#ifdef NO_WITNESS
#define WITNESSED(i) (true)
#else
#define WITNESSED(i) (!restored || NOT_PAST(mark) || NOT_PAST(dmark) || HINT(i))
#endif

#ifdef NO_TERM
#define LOWER(t, s) (false)
#else
#define LOWER(t, s) ((t) < (s))
#endif

/* Lease::warn(): rule 8 begins. not_before is computed here, from the clock of now. */
inline warn(i, afterwards) {
  back[i] = afterwards; nbv[i] = now + P; state[i] = WARN
}

/* The head and the tail of Lease::on_reply(): every answer shows the term, and one that went back
   is a reason to warn. A lower term is believed from then on: the next lower one is another
   restore, also while the warning is on its way. */
inline term_shown(i, t) {
  if
  :: LOWER(t, seen[i]) && state[i] != WARN -> warn(i, state[i])
#ifndef TERM_ADOPTED_LATE
  :: LOWER(t, seen[i]) && state[i] == WARN -> nbv[i] = now + P
#endif
  :: else
  fi;
#ifdef TERM_ADOPTED_LATE
  seen[i] = MAX(seen[i], t)
#else
  seen[i] = t
#endif
}

inline forget(i) {
  lease[i] = 0; stored[i] = 0; conf[i] = 0; floor_[i] = 0; until[i] = 0; fresh[i] = 0; installed[i] = 0
}

/* Rule 1: one transaction. The earlier claim's lease has ended, whether its holder knows or not. */
inline claim(i) {
  leases++; owner = leases; lease[i] = leases;
  stored[i] = mark;
#ifdef NOT_BEFORE_NOT_READ
  floor_[i] = mark;
#else
  floor_[i] = MAX(mark, nb);
#endif
  until[i] = now + PAUSE; fresh[i] = 1; state[i] = WIT;
#ifdef COLD_RAISES
  mark = MAX(mark, now + R); stored[i] = mark;
#endif
  term_shown(i, term)
}

/* Rule 9: the region is read after the claim, not_before with it. */
inline witness(i) {
#ifndef NOT_BEFORE_NOT_READ
  floor_[i] = MAX(floor_[i], nb);
#endif
  if
  :: WITNESSED(i) || now >= until[i] -> state[i] = HOLD; until[i] = 0; hmark[i] = 0; hterm[i] = 0
  :: else -> fresh[i] = 0
  fi;
  term_shown(i, term)
}

/* KeepAlive: proves nothing but the term. t: the term of the member that answers. */
inline keep_alive(i, t) {
  fresh[i] = 1;
  term_shown(i, t)
}

/* One transaction: LEASE of the claim is mine, the mark is less than the new one, and not less than
   as last seen. The failure branch tells which it was. */
inline raise(i) {
  asked = MAX(MAX(conf[i], floor_[i]), now + R);
  fresh[i] = 0;
  if
  :: owner != lease[i] -> /* lost; what is reserved goes on to be used (rule 7) */
     found = stored[i];
     forget(i); state[i] = IDLE;
#ifndef NO_MARK_CHECK
     if :: mark < found -> warn(i, IDLE) :: else fi;
#endif
     found = 0
#ifndef NO_MARK_CHECK
  :: owner == lease[i] && mark < stored[i] -> /* rule 8 */
     stored[i] = mark; warn(i, HOLD)
  :: owner == lease[i] && mark >= stored[i] ->
#else
  :: owner == lease[i] ->
#endif
     mark = MAX(mark, asked); stored[i] = mark; conf[i] = asked
  fi;
  asked = 0;
  term_shown(i, term);
  publish(i)
}

/* Publication, and Generator::install() or raise_fence(). At once: a later publication lets backends
   do nothing that they may not do here as well. */
inline publish(i) {
  if
  :: state[i] == HOLD && conf[i] != 0 && (installed[i] || now >= floor_[i]) ->
     if :: !installed[i] -> start[i] = MAX(start[i], floor_[i]); installed[i] = 1 :: else fi;
     fence[i] = conf[i]
  :: else
  fi
}

/* RaiseNotBefore was answered. A number whose claim still stands may have had another holder whom
   etcd forgot: it goes on above not_before only, as a new claim of it would. */
inline warned(i) {
  nb = MAX(nb, nbv[i]);
  fresh[i] = 0;
  found = nbv[i];
  term_shown(i, term);
#ifdef TERM_ADOPTED_LATE
  seen[i] = term;
#endif
  if
  :: nbv[i] != found -> skip /* the term went back once more: again */
  :: else ->
     state[i] = back[i];
#ifndef CLAIM_GOES_ON
     if :: back[i] == HOLD -> floor_[i] = MAX(floor_[i], nbv[i]); installed[i] = 0 :: else fi;
#endif
     back[i] = 0; nbv[i] = 0
  fi;
  found = 0;
  publish(i)
}

inline crash(i) {
  forget(i); state[i] = IDLE; back[i] = 0; nbv[i] = 0; seen[i] = 0; start[i] = 0; fence[i] = 0;
  if :: user == i -> user = 3 :: else fi
}

/* Generator::issue() by any backend. `last` keeps an instance from using a tick twice itself. */
#define MINTABLE(i) (now > start[i] && now <= fence[i] && user != i)
inline mint(i) {
  assert(user == 0); user = i
}

/* The same of D, whose number nobody else takes. */
inline d_term(t) {
  if
  :: LOWER(t, dseen) -> dstate = WARN; dnbv = now + P
  :: else
  fi;
#ifdef TERM_ADOPTED_LATE
  dseen = MAX(dseen, t)
#else
  dseen = t
#endif
}
inline d_raise() {
  if
#ifndef NO_MARK_CHECK
  :: dlost -> dlost = 0; dstate = WARN; dnbv = now + P
#endif
  :: else -> if :: restored -> dmark = now + R :: else fi
  fi;
  dfresh = 0;
  d_term(term)
}
inline d_warned() {
  nb = MAX(nb, dnbv);
  found = dnbv;
  d_term(term);
#ifdef TERM_ADOPTED_LATE
  dseen = term; dnbv = found;
#endif
  if :: dnbv == found -> dstate = HOLD; dnbv = 0 :: else fi;
  found = 0; dfresh = 0
}

inline tick() {
  now++; ticked = 1;
  user = 0;
  if :: taken && age <= AGE -> age++ :: else fi;
  fresh[1] = 0; fresh[2] = 0; dfresh = 0;
  /* What is past is the same as none. */
  if :: start[1] < now -> start[1] = 0 :: else fi;
  if :: start[2] < now -> start[2] = 0 :: else fi;
  if :: fence[1] < now -> fence[1] = 0 :: else fi;
  if :: fence[2] < now -> fence[2] = 0 :: else fi;
  if :: dmark <= now -> dmark = 0 :: else fi;
  if :: nb < now -> nb = 0 :: else fi;
  publish(1); publish(2)
}

#define LIVE(i) (state[i] != IDLE)
#define FORGETS(i) (lease[i] == bowner && LIVE(i) && stored[i] <= bmark)
#define ALL_KNOW (!FORGETS(1) && !FORGETS(2) && \
                  (hmark[1] == 0 || hmark[1] != bmark) && (hmark[2] == 0 || hmark[2] != bmark))

#ifdef SWITCHED
#define SPLIT 1
#else
#define SPLIT 0
#endif
active proctype world() {
  byte asked, found, t;
  d_step { dseen = term }
  do
  :: d_step { now < T && (taken || restored || now < BT) -> tick() }
  :: now == T -> break

#define INSTANCE(i) \
  :: d_step { up && state[i] == IDLE && leases < LEASES && (leases != 0 || i == 1) -> claim(i) } \
  :: d_step { up && state[i] == WIT && fresh[i] -> witness(i) } \
  :: d_step { up && (state[i] == WIT || state[i] == HOLD) && !fresh[i] -> keep_alive(i, term); \
       if :: SPLIT || !fresh[i] -> skip :: !SPLIT && fresh[i] && state[i] == WIT -> witness(i) :: !SPLIT && fresh[i] && state[i] == HOLD -> raise(i) :: else -> fresh[i] = 0 fi } \
  :: d_step { LAG && up && !lagged && state[i] == HOLD && !fresh[i] && term == 2 && seen[i] == 2 -> \
              lagged = 1; keep_alive(i, 1) } \
  :: d_step { up && state[i] == HOLD && fresh[i] -> raise(i) } \
  :: d_step { up && state[i] == WARN -> warned(i) } \
  :: d_step { MINTABLE(i) -> mint(i) } \
  :: d_step { LIVE(i) || fence[i] != 0 -> crash(i) } \
  :: d_step { HINTS && i == 1 && state[i] == HOLD && conf[i] != 0 -> \
              hmark[i] = conf[i]; hterm[i] = seen[i]; crash(i) }

  INSTANCE(1)
  INSTANCE(2)

  :: d_step { up && dstate == HOLD && !dfresh -> dfresh = 1; d_term(term);
       if :: !SPLIT && dstate == HOLD -> d_raise() :: else fi }
  :: d_step { LAG && up && !lagged && dstate == HOLD && !dfresh && term == 2 && dseen == 2 ->
              lagged = 1; dfresh = 1; d_term(1) }
  :: d_step { up && dstate == HOLD && dfresh -> d_raise() }
  :: d_step { up && dstate == WARN -> d_warned() }

  :: d_step { !taken && !restored && now <= BT -> taken = 1; age = 0; bowner = owner; bmark = mark; bnb = nb }
  :: d_step { taken && !restored && up -> up = 0; ticked = 0 }
#ifdef SWITCHED
  :: atomic { taken && !restored && age > AGE ->
#else
  :: atomic { taken && !restored && !up && ticked && age > AGE ->
#endif
       if :: term = 0; if :: dlost = 0 :: dlost = 1 fi
          :: ALL_KNOW -> term = 2; dlost = 1
#ifdef TERM_EQUAL
          :: term = 2
#endif
       fi;
       restored = 1; up = 1; taken = 0;
       owner = bowner; mark = bmark; nb = bnb;
       bowner = 0; bmark = 0; bnb = 0; age = 0 }
  od
}
