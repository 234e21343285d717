#!/bin/bash
# Removes each guard in turn from a copy of the core, of the compares that etcd is asked for, or of what
# the background worker does, and demands that the simulator finds what it then lets through. A checker
# that never failed proves nothing.
#
#   mutations.sh [BUILD] [NAME...]
#
# CORE: the folder that holds core/. SCHEDULES: how many a mutant may survive.
set -euo pipefail
sim=$(cd "$(dirname "$0")" && pwd)
build=${1:-$sim/../../build/sim/mutations}
shift || true
wanted=" $* "
core=${CORE:-$sim/../../src}
schedules=${SCHEDULES:-400000}

mkdir -p "$build"
build=$(cd "$build" && pwd)
rm -rf "$build/src" "$build/sim"
mkdir -p "$build/src"
cp -r "$core/core" "$build/src/core"
cp -r "$sim" "$build/sim"
cp -r "$build/src/core" "$build/pristine.core.$$"
cp -r "$build/sim" "$build/pristine.sim.$$"
trap 'rm -rf "$build/pristine.core.$$" "$build/pristine.sim.$$"' EXIT

caught=0 survived=0 broken=0
touched=()

# replace FILE OLD NEW: exactly one place.
replace() {
  local file=$build/$1
  if ! OLD=$2 NEW=$3 perl -0777 -i -pe \
      'my $n = s/\Q$ENV{OLD}\E/$ENV{NEW}/g; $ok = $n && $n == 1; END { exit($ok ? 0 : 1) }' "$file"; then
    echo "  does not apply to $1: $2"
    applies=0
  fi
  touched+=("$1")
}

restore() {
  local file
  for file in "${touched[@]}"; do
    case $file in
      src/core/*) cp "$build/pristine.core.$$/${file#src/core/}" "$build/$file" ;;
      sim/*) cp "$build/pristine.sim.$$/${file#sim/}" "$build/$file" ;;
    esac
  done
  touched=()
}

build_it() {
  make -s -C "$build/sim" BUILD="$build/obj" CORE="$build/src" OPTIMIZE=-O1 \
    CXXFLAGS= >"$build/make.log" 2>&1 || { cat "$build/make.log"; return 1; }
}

# mutant NAME: what was replaced since the last one must be found.
mutant() {
  local name=$1 start line
  if [ "$wanted" != "  " ] && [[ $wanted != *" $name "* ]]; then
    restore
    applies=1
    return
  fi
  if [ $applies = 0 ] || ! build_it; then
    printf '%-28s DOES NOT APPLY\n' "$name"
    broken=$((broken + 1))
  elif start=$(date +%s%N); line=$(timeout 600 "$build/obj/sim" --schedules "$schedules"); then
    printf '%-28s SURVIVED %s schedules\n' "$name" "$schedules"
    survived=$((survived + 1))
  else
    line=$(echo "$line" | grep 'schedules, 1 failed') || line="? crashed"
    printf '%-28s %6s schedules %6.1f s  %s\n' "$name" "${line%% *}" \
      "$(($(date +%s%N) - start))e-9" "${line#*(}"
    caught=$((caught + 1))
  fi
  restore
  applies=1
}
applies=1

build_it
if ! "$build/obj/sim" --schedules "$schedules" >"$build/unmutated.log"; then
  tail -3 "$build/unmutated.log"
  echo "The core fails as it is."
  exit 1
fi

lease=src/core/lease.cpp
generator=src/core/generator.cpp
guard=src/core/clock_guard.hpp
etcd=sim/etcd.cpp
world=sim/world.cpp

# ---- claim, mark and fence

replace $lease 'floor_ = std::max({stored_, passes_at(reply.not_before), kEpochUnixMs});' \
  'floor_ = std::max(passes_at(reply.not_before), kEpochUnixMs);'
mutant start-at-the-clock

replace $lease 'stored_ = passes_at(reply.mark);' \
  'stored_ = passes_at(marks_[static_cast<size_t>(worker_)]);'
mutant mark-read-before-the-claim

replace $etcd 'return stored == request.lease; }' 'return stored != 0 || request.lease != 0; }'
mutant no-lease-compare

replace $etcd 'leased(claim, request) && less(mark, request) &&' 'leased(claim, request) &&'
mutant no-less-compare

replace $etcd 'if (claim == id) claim = 0;' \
  'if (claim == id) { state_.marks[static_cast<size_t>(&claim - state_.claims.data())] = {}; claim = 0; }'
mutant mark-on-the-lease

replace $lease '                 : kEpochUnixMs});
        break;' '                 : kEpochUnixMs});
        confirmed_ = request.mark_unix_ms;
        break;'
mutant publish-before-the-reply

replace $lease 'if (reply.failed) return doubt(now, reply);
  const int64_t asked' 'if (reply.failed) confirmed_ = under_way_.mark_unix_ms;
  if (reply.failed) return doubt(now, reply);
  const int64_t asked'
mutant lost-reply-is-a-success

replace $lease 'still_mine(reply.lease == lease_,' 'still_mine(true,'
mutant failure-branch-believed

replace $lease '|| reply.serial != under_way_.serial) return;' ') return;'
mutant late-reply-accepted

replace $lease 'if (reply.failed) {
    give_up_claim(now, 0);
    return pause(now, reply);
  }' 'if (reply.failed) return pause(now, reply);'
mutant lease-used-again

replace $lease 'earlier_lease_ = earlier_lease;' 'earlier_lease_ = 0 * earlier_lease;'
mutant earlier-lease-not-revoked

# ---- the two words

replace $generator '|| node_in(last) != node_in(fence)) return' ') return'
replace $generator 'uint64_t seen = last.value.load(std::memory_order_relaxed);' \
  'fence.value.store(pack(mark_ms, node), std::memory_order_release);
  uint64_t seen = last.value.load(std::memory_order_relaxed);'
mutant node-not-in-the-word

replace $generator 'if (last.value.compare_exchange_weak(last_seen, pack(answer.first + n - 1, answer.node),
                                         std::memory_order_acq_rel, std::memory_order_acquire))
      return answer;' 'last.value.store(pack(answer.first + n - 1, answer.node));
    return answer;'
mutant store-instead-of-swap

replace $generator 'if (end_ms > value_of(fence)) return refuse(Refusal::kFence);' ''
mutant fence-ignored

replace $generator 'std::max(value_of(last) + 1, first_tick(now_ms))' \
  'ms_of_tick(value_of(last)) == now_ms ? value_of(last) + 1 : first_tick(now_ms)'
mutant sequence-reset

replace $generator 'if (end_ms - now_ms > kMaxLeadMs) return' 'if (end_ms - now_ms > 100 * kMaxLeadMs) return'
mutant no-bound-on-the-lead

replace $generator 'std::max(floor_ms, ms_of_tick(value_of(seen)))' '(void(seen), floor_ms)'
mutant install-forgets-the-last

replace $world '        in.mem().generator.withdraw();
        in.children = true;' '        in.mem().generator = {};
        in.children = true;'
mutant last-lost-in-a-crash

# ---- clocks

replace $guard 'if (offset_ms_ == 0 || vouched || std::abs(gain) <= kMaxJumpMs) offset_ms_ = offset;' \
  'offset_ms_ = gain * 0 + offset + (vouched ? 0 : 0);'
mutant every-jump-believed

replace $generator 'if (now_ms - ms_of_tick(value_of(last)) > kMaxJumpMs &&' \
  'if (now_ms - ms_of_tick(value_of(last)) > 1000000 * kMaxJumpMs &&'
mutant call-believes-a-jump

# ---- restored etcd

replace $lease 'const bool enough = witnessed(reply, now) ||' 'const bool enough = true ||'
mutant no-witness-asked

replace $lease 'mark.kind == Mark::kTime && mark.unix_ms > now.wall.unix_ms &&' 'mark.kind == Mark::kTime &&'
mutant past-mark-as-witness

replace $lease 'mark.unix_ms > passes_at(not_before) &&' 'passes_at(not_before) >= 0 &&'
mutant raised-mark-as-witness

replace $lease 'quarantined_until_ = now.boot.ms + settings_.reserve_ms + kForgottenMs;' \
  'quarantined_until_ = now.boot.ms + settings_.reserve_ms / 2;'
mutant pause-too-short

replace $lease 'floor_ = std::max({stored_, passes_at(reply.not_before), kEpochUnixMs});' \
  'floor_ = std::max(stored_, kEpochUnixMs);'
replace $lease 'floor_ = std::max(floor_, passes_at(reply.not_before));' ''
mutant not-before-not-read

replace $lease 'std::min(now.wall.unix_ms + settings_.reserve_ms + kForgottenMs,' \
  'std::min(now.wall.unix_ms,'
mutant not-before-too-low

replace $lease 'mark.kind != Mark::kGarbage && found < stored_;' 'false;'
mutant own-mark-not-checked

replace $lease 'shown && reply.term < term_before;' 'false;'
mutant term-not-checked

replace $lease 'if (!kept_alive_ || now.boot.ms - term_shown_ > kTermFreshMs) {' 'if (!kept_alive_) {'
replace $lease 'if (!asked(now) && (good_' 'if (!asked_ && (good_'
mutant term-shown-long-ago

replace $lease ' &&
        reply.term >= last_mark_.term &&' ' &&'
mutant hint-of-a-later-term

replace $lease 'mark.unix_ms == last_mark_.unix_ms && mark.mod_revision == last_mark_.mod_revision &&' ''
mutant hint-not-compared

replace $lease '  kept_alive_ = false;
  asked_ = 0;
  good_ = 0;
  pause(now, reply);' '  pause(now, reply);'
mutant term-of-another-endpoint

replace $lease 'surplus_ != kNoSurplus && surplus < surplus_ - kSurplusSlack;' 'false;'
mutant surplus-not-checked

replace $lease ' &&
        (last_mark_.surplus == kNoSurplus || surplus_ >= last_mark_.surplus - kSurplusSlack))' ')'
mutant hint-of-a-higher-surplus

replace $lease 'floor_ = std::max(floor_, not_before_);
  installed_ = false;
  confirmed_ = published_ = 0;' ''
mutant restored-claim-goes-on

replace $lease 'warned_ = false;
  proof_below_ = std::max(proof_below_, term_before);
  not_before_ = std::max(not_before_, forgotten_until(now));' ''
mutant restore-during-a-warning

replace $lease 'if (passes_at(reply.marks[i]) < passes_at(watched_.marks[i])) return false;' \
  'if (passes_at(reply.marks[i]) < 0) return false;'
replace $lease 'reply.term < watched_.term || passes_at(reply.not_before) < passes_at(watched_.not_before))' \
  'false)'
mutant watched-not-compared

echo "$caught caught, $survived survived, $broken do not apply"
[ $survived = 0 ] && [ $broken = 0 ]
