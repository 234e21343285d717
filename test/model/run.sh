#!/bin/sh
# Checks the models of this folder with spin, exhaustively. A model with all guards must come out
# clean; each of its variants, in which one guard is missing, must come out with a duplicate: a model
# that can't fail proves nothing. Needs spin and gcc. Works in build/model of the source tree, about
# 2 GB of memory; at most TIMEOUT seconds (600) for each run. Arguments: only the models named.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$here/../../build/model
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1

passed=0
failed=0
wanted=" $* "

# run clean|duplicate MODEL WHAT [-D...]
run() {
  expected=$1 model=$2 what=$3
  shift 3
  [ "$wanted" = "  " ] || case $wanted in *" $model "*) ;; *) return ;; esac
  # A folder of its own: spin writes fixed names.
  dir=$model-$(echo "$expected $*" | tr -c 'A-Za-z0-9\n' _)
  mkdir "$dir"
  started=$(date +%s)
  if ! (cd "$dir" && spin -a "$@" "$here/$model.pml" >spin.log 2>&1 && [ -f pan.c ] &&
    gcc -O2 -w -DSAFETY -DNOREDUCE -DNOFAIR -DMEMLIM=4000 -o pan pan.c >gcc.log 2>&1); then
    verdict="does not compile"
  elif ! (cd "$dir" && timeout "${TIMEOUT:-600}" ./pan -m100000 -w24 >out 2>&1); then
    verdict="stopped before the end"
  elif grep -q 'assertion violated' "$dir/out" && grep -q 'errors: 1' "$dir/out"; then
    verdict=duplicate
  elif grep -q 'max search depth too small\|Search not completed' "$dir/out"; then
    verdict="not searched to the end"
  elif grep -q 'errors: 0' "$dir/out"; then
    verdict=clean
  else
    verdict="$(grep -m1 '^pan:' "$dir/out")"
  fi
  states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$dir/out" 2>/dev/null)
  depth=$(sed -n 's/.*depth reached \([0-9]*\),.*/\1/p' "$dir/out" 2>/dev/null)
  if [ "$verdict" = "$expected" ]; then
    result=ok
    passed=$((passed + 1))
  else
    result="NOT OK, expected: $expected"
    failed=$((failed + 1))
  fi
  printf '%-9s  %-58s %9s states, depth %5s, %3d s: %s, %s\n' "$model" "$what" "${states:--}" \
    "${depth:--}" $(($(date +%s) - started)) "$verdict" "$result"
}

echo "With all guards, to the end of the search:"
run clean claim "claim, raise, publish; late, lost and repeated"
run clean generator "issue() while the node changes"
run clean restore "a restore, with a witness true or false"
run clean restore "the same, finer time" -DR=2 -DT=8
run clean restore "keepalive and raise apart" -DAPART -DT=5
run clean restore "a clean stop and its file" -DFILES
run clean restore "a member that lags" -DLAG

echo "With one guard removed:"
run duplicate claim "the mark goes with the lease" -DMARK_IN_LEASE
run duplicate claim "a raise does not compare the lease" -DNO_LEASE_COMPARE
run duplicate claim "a raise does not compare that the mark is less" -DNO_LESS_COMPARE
run duplicate claim "the mark is published before etcd has confirmed it" -DPUBLISH_FIRST
run duplicate claim "the first tick is the clock's, whatever the mark" -DSTART_AT_CLOCK
run duplicate claim "the mark is read before the claim, not in it" -DMARK_READ_BEFORE
run duplicate claim "a reply to an earlier request is taken for this one's" -DANY_REPLY
run duplicate claim "a higher mark is a success, under anybody's lease" -DSUCCESS_OF_ANOTHER
run duplicate claim "backends ignore the fence" -DFENCE_IGNORED
run duplicate generator "backends ignore the fence" -DFENCE_IGNORED
run duplicate generator "the fence is not looked at again after a lost swap" -DFENCE_STALE
run duplicate generator "the fence does not say whose it is" -DFENCE_WITHOUT_NODE
run duplicate generator "the node is no part of the words" -DNODE_NOT_IN_WORDS
run duplicate generator "a store instead of the swap" -DNO_SWAP
run duplicate generator "a new claim may put the last tick back" -DSTART_BELOW_LAST
run duplicate restore "a claim needs no witness" -DNO_WITNESS
run duplicate restore "the pause without a witness is too short" -DSHORT_PAUSE
run duplicate restore "a claim without a witness raises its mark at once" -DCOLD_RAISES
run duplicate restore "not_before is not read" -DNOT_BEFORE_NOT_READ
run duplicate restore "a holder does not look at its own mark" -DNO_MARK_CHECK
run duplicate restore "a holder does not look at the term" -DNO_TERM
run duplicate restore "a holder thawed does not ask for the term again" -DTERM_NOT_FRESH
run duplicate restore "a holder raises its mark before not_before" -DRAISE_BEFORE_WARNING
run duplicate restore "a claim that stands again goes on below not_before" -DCLAIM_GOES_ON
run duplicate restore "a restore while the warning is on its way is missed" -DTERM_ADOPTED_LATE -DLAG
run duplicate restore "the file of a clean stop counts at any term" -DFILE_WITHOUT_TERM -DFILES

echo "Where the promise ends, as doc/ says:"
run duplicate restore "the backup is younger than the reserve" -DYOUNG -DR=2 -DT=6
run duplicate restore "the restored etcd's term is not lower" -DTERM_EQUAL
run duplicate restore "the restored etcd answers within kTermFreshMs" -DSWITCHED

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
