/* etcd restored from a backup: rules 8 and 9 of src/core/lease.hpp.

   The question: somebody takes a backup of etcd, more is claimed and confirmed, then etcd is restored
   from the backup. Is any tick of a worker number used twice?

   The world, one step of one actor at a time:
     W         the worker number that is watched. Instances 1 and 2 claim it again and again; either
               may crash, be stopped cleanly (1), or do nothing for any time: a freeze, a partition.
               The lease under its claim may end at any moment, so a claim is always possible.
     D         a third instance, which holds another number: the witness of rule 9, a true or a false
               one. It too may do nothing for any time.
     etcd      claim and mark of W, mark of D, not_before, the raft term (which stands for the raft
               surplus too: see Reply in lease.hpp). A backup has all of them; a
               claim in it stands again after the restore, with its old lease.
     time      `now`, the same for all. One tick is a reserve, and stands for all milliseconds and
               sequences in it: two that use W in the same tick are a duplicate.

   What is taken for granted. Each has a variant that shows the duplicate without it:
     - a backup is older than reserve + 10 s when it is restored                          (YOUNG)
     - a restored etcd shows a lower raft term or surplus than before; or else everybody who believes to hold a
       number has confirmed something that the backup lacks, and no file of a clean stop fits the
       backup                                                                        (TERM_EQUAL)
     - more than kTermFreshMs pass between the last answer of the old etcd and the first raise that
       reaches the restored one                                                        (SWITCHED)
   Before the restore every claim counts as witnessed: etcd's memory is current then.

   How the values are kept small. What is past is 0, which no rule can tell apart. A compare of the
   stored mark with the one that the restore brings back is a bit, since marks only rise otherwise:
   `ahead` means stored_ > the mark in the backup, `same` and `fits` mean equality.

   Variants: -D of a name in an #ifdef below; run.sh lists them. */

#ifndef T
#define T 6                 /* the world ends here */
#endif
#ifndef R
#define R 1                 /* snowflake.reserve */
#endif
#define P (R + 1)           /* reserve + kForgottenMs */
#ifndef BACKUP
#define BACKUP 1            /* the latest tick of the backup */
#endif
/* A keepalive and the raise or reading after it are one step, unless a restore can come in between. */
#if defined(SWITCHED) || defined(TERM_NOT_FRESH)
#define APART
#endif
#ifdef LAG
#define LAGS 1
#else
#define LAGS 0
#endif
#ifdef SHORT_PAUSE
#define PAUSE 0
#else
#define PAUSE P
#endif
#ifdef YOUNG
#define AGE 0
#else
#define AGE P
#endif
#define MAX(a, b) ((a) > (b) -> (a) : (b))

/* ---- etcd */
byte now = 1;
byte owner;                 /* whose lease W's claim hangs on: 1, 2; 0: nobody's */
byte mark, dmark, nb;       /* of W and of D's number; not_before */
byte term = 2;              /* raft term; a restored etcd is at 0 */
bit lagged;                 /* a member that lags has answered, with term 1: once is enough */
/* ---- the backup */
bit taken, restored;
byte age, bowner, bmark, bnb;
bit rose;                   /* the mark of W has risen since */

/* ---- instances 1 and 2: the fields of Lease */
#define IDLE 0              /* kRevoking to kClaiming: no claim */
#define WIT 1               /* kWitnessing */
#define HOLD 2              /* kHolding */
#define WARN 3              /* kWarning */
#define PROVEN 3
byte state[3], back[3];     /* state_, after_warning_ */
byte floor_[3];             /* floor_ */
byte until[3];              /* quarantined_until_ */
byte seen[3];               /* term_; 0: none */
byte was[3];                /* term_ before the warning; PROVEN: the mark itself was gone */
byte nbv[3];                /* not_before_ */
byte conf[3];               /* confirmed_, while it can't be handed out yet */
bit installed[3];           /* installed_ */
bit ahead[3];               /* stored_ is higher than the mark in the backup */
bit fresh[3];               /* kept_alive_, less than kTermFreshMs ago */
/* ---- their shared memory, as far as it is about W: ticks above start, up to fence */
byte start[3], fence[3];
/* ---- the file of a clean stop of instance 1, and what it would hold */
bit same, bsame;            /* its last confirmed mark is etcd's, is the backup's */
bit file, fits, bfits;      /* the same of the mark in the file */
byte hterm;                 /* the term in the file */

/* ---- D: the same fields. dahead: the restore has taken back a mark of it */
byte dstate = HOLD, dseen, dnbv;
bit dahead, dfresh;

/* ---- who used the tick `now` of W; 3: somebody that has crashed since */
byte user;

/* Rule 9. */
#define NOT_PAST(m) ((m) > now && (m) <= now + 2 * R)
#ifdef FILE_WITHOUT_TERM
#define FILE_FITS(i) (i == 1 && file && fits)
#else
#define FILE_FITS(i) (i == 1 && file && fits && term >= hterm)
#endif
#ifdef NO_WITNESS
#define WITNESSED(i) (true)
#else
#define WITNESSED(i) (!restored || NOT_PAST(mark) || NOT_PAST(dmark) || FILE_FITS(i))
#endif
#ifdef NO_TERM
#define LOWER(t, s) ((s) == PROVEN)
#else
#define LOWER(t, s) ((t) < (s))
#endif

/* Lease::warn(): rule 8 begins. What to put is computed here, of the clock as it is now. */
inline warn(i, afterwards, why) {
  back[i] = afterwards; was[i] = why; nbv[i] = now + P; state[i] = WARN
}

/* Lease::on_reply(), of every answer: a term that went back is a reason to warn. The lower term is
   believed from then on, so that the next lower one is noticed too, also while the warning is on its
   way. */
inline answered(i, t) {
#ifdef TERM_ADOPTED_LATE
  if :: LOWER(t, seen[i]) && state[i] != WARN -> warn(i, state[i], seen[i]) :: else fi;
  seen[i] = MAX(seen[i], t)
#else
  if
  :: LOWER(t, seen[i]) && state[i] != WARN -> warn(i, state[i], seen[i])
  :: LOWER(t, seen[i]) && state[i] == WARN -> nbv[i] = now + P
  :: else
  fi;
  seen[i] = t
#endif
}

/* Lease::forget_claim(). The lease is never used again, so the claim is as good as gone wherever it
   stands. */
inline forget(i) {
  floor_[i] = 0; until[i] = 0; conf[i] = 0; installed[i] = 0; ahead[i] = 0; fresh[i] = 0;
  if :: owner == i -> owner = 0 :: else fi;
  if :: bowner == i -> bowner = 0 :: else fi;
  if :: i == 1 -> same = 0; bsame = 0 :: else fi
}

/* The mark in etcd becomes `to`, which is not lower, and is stored_ then. */
inline put_mark(i, to) {
  if
  :: to > mark ->
     mark = to;
     same = 0; bsame = 0; fits = 0;
     if :: taken -> rose = 1 :: else fi;
     if :: restored -> ahead[1] = 0; ahead[2] = 0 :: else fi
  :: else
  fi;
  ahead[i] = rose;
  if :: i == 1 && mark == to -> same = 1 :: else fi
}

/* Rule 1: one transaction. The earlier claim's lease has ended, whether its holder knows or not. */
inline claim(i) {
  forget(i);
  owner = i; ahead[i] = rose;
#ifdef NOT_BEFORE_NOT_READ
  floor_[i] = mark;
#else
  floor_[i] = MAX(mark, nb);
#endif
  until[i] = now + PAUSE; state[i] = WIT; fresh[i] = 1;
#ifdef COLD_RAISES
  put = MAX(mark, now + R); put_mark(i, put); put = 0;
#endif
  answered(i, term)
}

/* Rule 9: a reading of the region, made after the claim, not_before with it. */
inline witness(i) {
#ifndef NOT_BEFORE_NOT_READ
  floor_[i] = MAX(floor_[i], nb);
#endif
  if
  :: WITNESSED(i) || now >= until[i] ->
     state[i] = HOLD; until[i] = 0;
     if :: i == 1 -> file = 0; fits = 0; bfits = 0; hterm = 0 :: else fi
  :: else -> fresh[i] = 0
  fi;
  answered(i, term)
}

/* KeepAlive proves nothing, but its answer shows the term. */
inline keep_alive(i, t) {
  fresh[i] = 1;
  answered(i, t);
  if
  :: state[i] == WARN -> fresh[i] = 0
#ifndef APART
  :: state[i] == WIT -> witness(i)
  :: state[i] == HOLD -> raise(i)
#endif
  :: else
  fi
}

/* Raise: LEASE of the claim is mine, the mark is LESS than the new one, and not less than as last
   stored. Its failure branch tells which it was. */
inline raise(i) {
  fresh[i] = 0;
  if
  :: owner != i -> /* lost: what is reserved goes on to be used (rule 7) */
     gone = ahead[i];
     forget(i); state[i] = IDLE;
#ifndef NO_MARK_CHECK
     if :: restored && gone -> warn(i, IDLE, PROVEN) :: else fi;
#endif
     gone = 0
#ifndef NO_MARK_CHECK
  :: owner == i && restored && ahead[i] -> /* rule 8 */
     ahead[i] = 0; warn(i, HOLD, PROVEN)
  :: owner == i && !(restored && ahead[i]) ->
#else
  :: owner == i ->
#endif
     conf[i] = MAX(floor_[i], now + R);
     put_mark(i, conf[i])
  fi;
  answered(i, term);
  publish(i)
}

/* Lease::publication(), and Generator::install() or raise_fence(). At once: a later publication lets
   backends do nothing that they may not do here as well. */
inline publish(i) {
  if
  :: state[i] == HOLD && conf[i] != 0 && (installed[i] || now >= floor_[i]) ->
     if :: !installed[i] -> start[i] = MAX(start[i], floor_[i]); installed[i] = 1 :: else fi;
     fence[i] = conf[i]; conf[i] = 0
  :: else
  fi;
  issue(i)
}

/* Generator::issue() of any backend, whenever it would grant: to mint earlier, later or not at all
   changes nothing else. `last` keeps an instance from using a tick twice itself. */
inline issue(i) {
  if
  :: now > start[i] && now <= fence[i] && user != i -> assert(user == 0); user = i
  :: else
  fi
}

/* RaiseNotBefore, answered by a quorum. Its term tells a restored etcd from a member that lagged.
   In a restored one a number whose claim stands may have had another holder, whom etcd has forgotten.
   So it goes on above not_before only, like a new claim of it. */
inline warned(i) {
  nb = MAX(nb, nbv[i]);
  put = nbv[i];
  answered(i, term);
#ifdef TERM_ADOPTED_LATE
  seen[i] = term;
#endif
  if
  :: nbv[i] != put /* restored since: again */
  :: else ->
     state[i] = back[i]; fresh[i] = 0;
#ifndef CLAIM_GOES_ON
     if
     :: state[i] == HOLD && LOWER(term, was[i]) ->
        floor_[i] = MAX(floor_[i], put); installed[i] = 0; conf[i] = 0
     :: else
     fi;
#endif
     back[i] = 0; was[i] = 0; nbv[i] = 0
  fi;
  put = 0;
  publish(i)
}

/* Of the postmaster: nothing survives. */
inline crash(i) {
  forget(i);
  state[i] = IDLE; back[i] = 0; was[i] = 0; nbv[i] = 0; seen[i] = 0; start[i] = 0; fence[i] = 0;
  if :: user == i -> user = 3 :: else fi
}

/* A clean stop leaves its last mark in a file, also when the number is lost and it doesn't know. */
inline stop(i) {
  file = 1; fits = same; bfits = bsame; hterm = seen[i];
  crash(i)
}

/* ---- D: keepalive, raise, warning; its claim always stands */
inline d_answered(t) {
#ifdef TERM_ADOPTED_LATE
  if :: LOWER(t, dseen) && dstate != WARN -> dstate = WARN; dnbv = now + P :: else fi;
  dseen = MAX(dseen, t)
#else
  if :: LOWER(t, dseen) -> dstate = WARN; dnbv = now + P :: else fi;
  dseen = t
#endif
}
inline d_keep_alive(t) {
  dfresh = 1;
  d_answered(t);
  if
  :: dstate == WARN -> dfresh = 0
#ifndef APART
  :: dstate == HOLD -> d_raise()
#endif
  :: else
  fi
}
inline d_raise() {
  dfresh = 0;
  if
#ifndef NO_MARK_CHECK
  :: dahead -> dahead = 0; dstate = WARN; dnbv = now + P
#endif
  :: else -> if :: restored -> dmark = now + R :: else fi
  fi;
#ifdef RAISE_BEFORE_WARNING
  if :: restored -> dmark = now + R :: else fi;
#endif
  d_answered(term)
}
inline d_warned() {
  nb = MAX(nb, dnbv);
  put = dnbv;
  d_answered(term);
#ifdef TERM_ADOPTED_LATE
  dseen = term;
#endif
  if :: dnbv != put :: else -> dstate = HOLD; dnbv = 0 fi;
  put = 0
}

inline forget_past(x) { if :: x < now -> x = 0 :: else fi }
inline tick() {
  now++;
  user = 0;
  if :: taken -> age++ :: else fi;
#ifndef TERM_NOT_FRESH
  fresh[1] = 0; fresh[2] = 0; dfresh = 0;
#endif
  forget_past(mark); forget_past(dmark); forget_past(nb); forget_past(bmark); forget_past(bnb);
  forget_past(floor_[1]); forget_past(start[1]); forget_past(fence[1]);
  forget_past(floor_[2]); forget_past(start[2]); forget_past(fence[2]);
  publish(1); publish(2)
}

inline backup() {
  taken = 1;
  bowner = owner; bmark = mark; bnb = nb; bsame = same; bfits = fits
}

/* Nobody would go on as if nothing had been lost. */
#define UNAWARE(i) (state[i] != IDLE && !ahead[i])
#define ALL_AWARE (!UNAWARE(1) && !UNAWARE(2) && !(file && bfits))
inline restore() {
#ifdef YOUNG
  dmark = now - age + R;
#endif
  restored = 1; taken = 0; age = 0; rose = 0;
  owner = bowner; mark = bmark; nb = bnb; same = bsame; fits = bfits;
  bowner = 0; bmark = 0; bnb = 0; bsame = 0; bfits = 0;
  /* A claim that the backup has goes on where the restored mark is. */
}

active proctype world() {
  byte put; bit gone;
  d_step { dseen = term }
  do
  :: d_step { now < T && (taken || restored || now < BACKUP) -> tick() }
  :: now == T -> break

#define INSTANCE(i) \
  :: d_step { state[i] == IDLE -> claim(i) } \
  :: d_step { state[i] == WIT && fresh[i] -> witness(i) } \
  :: d_step { (state[i] == WIT || state[i] == HOLD) && !fresh[i] -> keep_alive(i, term) } \
  :: d_step { LAGS && state[i] == HOLD && !fresh[i] && !lagged && term == 2 && seen[i] == 2 -> \
              lagged = 1; keep_alive(i, 1) } \
  :: d_step { state[i] == HOLD && fresh[i] -> raise(i) } \
  :: d_step { state[i] == WARN -> warned(i) } \
  :: d_step { state[i] != IDLE || fence[i] != 0 -> crash(i) }
  INSTANCE(1)
  INSTANCE(2)
#ifdef FILES
  :: d_step { state[1] == HOLD && (installed[1] || conf[1] != 0) -> stop(1) }
#endif

  :: d_step { dstate == HOLD && !dfresh -> d_keep_alive(term) }
  :: d_step { LAGS && dstate == HOLD && !dfresh && !lagged && term == 2 && dseen == 2 ->
              lagged = 1; d_keep_alive(1) }
  :: d_step { dstate == HOLD && dfresh -> d_raise() }
  :: d_step { dstate == WARN -> d_warned() }

  :: d_step { !taken && !restored && now <= BACKUP -> backup() }
#ifdef SWITCHED
  :: atomic { taken && age > AGE ->
#else
  :: atomic { taken && age >= AGE && now < T -> /* etcd is down from the end of one tick to the next */
       d_step { tick() }
#endif
       if
       :: term = 0 -> if :: skip :: dahead = 1 fi
       :: ALL_AWARE -> dahead = 1
#ifdef TERM_EQUAL
       :: skip
#endif
       fi;
       d_step { restore() } }
  od
}
