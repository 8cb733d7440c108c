// Jobs under faults that once failed, as the commands that the simulator's --shrink printed. Where
// it takes a narrow moment the faults name what is said at it instead of a time.
#include <gtest/gtest.h>

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tools/simulate/fault_job.h"
#include "tools/simulate/fault_runs.h"
#include "tools/simulate/options.h"

namespace lockstep::simulate {
namespace {

struct Case {
  const char* name;  // what happens
  const char* arguments;
  bool all_lost = false;  // nobody is left who holds the parameters
  int within_s = 0;       // of the job's time; 0: whenever it ends
};

class Regressions : public ::testing::TestWithParam<Case> {};

TEST_P(Regressions, GoesAsItHasTo) {
  std::istringstream words(GetParam().arguments);
  const std::vector<std::string> arguments{std::istream_iterator<std::string>(words), {}};
  auto options = ParseSimulateOptions(arguments);
  ASSERT_TRUE(options.ok()) << options.error().message;
  const FaultOutcome outcome = RunFaultJob(FaultJobOf(*options, options->first_seed));
  EXPECT_EQ(outcome.failure, "") << outcome.details;
  for (const Fault& fault : outcome.to_come) ADD_FAILURE() << ToString(fault) << " never came";
  EXPECT_EQ(outcome.all_lost, GetParam().all_lost);
  if (GetParam().within_s > 0) {
    EXPECT_LT(outcome.took, std::chrono::seconds(GetParam().within_s));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Seeds, Regressions,
    ::testing::Values(
        // A worker was behind and did not reach one of the others, for good. All others had used up
        // both parts of the round or were fenced, and the round waited for that worker.
        Case{"WhoCannotCatchUpIsNotWaitedFor",
             "--faults --seed 856 --optimizer.replicas=2 --fault "
             "stop@0.462379s:0,for=0.151739s --fault crash@0.646401s:0 --fault "
             "partition@0.718593s:1-4,for=0.109694s --fault stop@0.805656s:3,for=0.182845s "
             "--fault control-in@0.913737s:2,for=0.007677s --fault "
             "stop@1.273176s:5,for=0.037957s --fault control-in@1.452411s:5,for=0.101332s "
             "--fault stop@1.490189s:1,for=0.030680s --fault stop@1.524472s:1,for=0.073354s "
             "--fault stop@1.612023s:1,for=4.096274s --fault stop@2.102412s:4,for=0.071494s "
             "--fault slow-control@2.376738s:5,for=0.008748s --fault "
             "hang-reduction@2.433740s:3,for=0.040035s --fault "
             "partition@2.504059s:5-4,for=600.000000s --fault stop@2.576899s:5,for=0.238955s "
             "--fault control-out@2.813546s:2,for=0.129311s --fault "
             "delay@3.390148s:4-0,for=0.009406s --fault control-out@3.659881s:0,for=2.447554s "
             "--fault delay@3.937218s:5-0,for=0.017256s --fault cut-link@3.989277s:2-5"},
        // A link was made again while a round was open, and from then on both read each other's
        // memory. The coordinator waited for receipts that nobody sends then.
        Case{"ALinkIsMappedInTheMidstOfARound",
             "--faults --seed 3449 --optimizer.replicas=2 --fault "
             "crash-coordinator@4.087961s,for=0.190542s --fault resume@4.303933s,for=0.055662s "
             "--fault one-way@4.848711s:1-0,for=4.496648s --fault "
             "crash-coordinator@6.242613s,for=0.130590s"},
        // The round was cut while one worker computed, and what that one gave was not finite.
        // Nobody had anything to do then, and there was nothing to close the round over.
        Case{"NothingThatCountsIsLeftOfACutRound",
             "--faults --seed 9791 --fault stop@0.078310s:0,for=2.870785s --fault "
             "stop@0.243964s:2,for=0.053778s --fault stop@0.272774s:4,for=0.038870s --fault "
             "stop@0.338951s:2,for=0.034672s --fault control-in@0.710800s:3,for=0.209964s --fault "
             "stop@0.821696s:1,for=0.175646s"},
        // A coordinator took over with one holder and two workers that did not reach each other.
        // The one was let in and copied; so the other one could not, and was forgotten.
        Case{"OfTwoThatCopyAtATakeoverOneDoesNotReachTheOther",
             "--faults --seed 5102 --optimizer.replicas=2 --fault "
             "partition@1.140808s:1-0,for=0.137731s --fault "
             "tear-journal@1.532048s,for=3.471250s --fault delay@5.082977s:1-0,for=0.000758s "
             "--fault away@7.035502s:0,for=3.261220s --fault crash@7.224616s:2 --fault "
             "tear-journal@7.375748s,for=0.258217s --fault one-way@7.680169s:0-2,for=4.179860s"},
        // A worker had copied the state since the last commit, so the journal did not name it. The
        // next coordinator began without it, and the other one died.
        Case{"WhoHasJustCopiedIsWaitedForAtATakeover",
             "--faults --seed 11866 --optimizer.replicas=2 --fault cut-link@0.229782s:0-1 --fault "
             "crash@0.269885s:0 --fault crash-coordinator@0.737441s,for=0.074349s --fault "
             "crash@0.847497s:1"},
        // It was behind for a broken link, came back in the same round, and sealed a part under the
        // number of one that an owner had: the receipt of the old one stood for the new one.
        Case{"ItComesBackInTheRoundInWhichItWasBehind",
             "--faults --seed 12665 --optimizer.replicas=2 --fault "
             "stop@0.391752s:0,for=1.647958s --fault partition@1.286612s:4-2,for=2.220649s --fault "
             "cut-link@2.059510s:4-2 --fault stop@2.279939s:2,for=0.210166s --fault "
             "stop@2.679766s:0,for=3.708766s --fault delay@3.959519s:1-4,for=0.390832s"},
        // An update was abandoned for a copy of newer parameters, the round was closed, and the
        // mapped sums changed under the update.
        Case{"AnAbandonedUpdateIsTorn",
             "--faults --seed 19236 --fault cut-link@0.384226s:1-4 --fault "
             "control-in@0.703983s:4,for=0.093160s --fault "
             "partition@0.763875s:0-3,for=0.256439s --fault stop@1.093102s:0,for=0.250700s "
             "--fault stop-coordinator@1.259983s,for=0.041159s --fault "
             "stop@1.545653s:4,for=0.208281s --fault control-out@1.610246s:3,for=0.164982s "
             "--fault stop@1.733146s:1,for=0.093674s --fault crash@1.775618s:1 --fault "
             "slow-control@1.963496s:2,for=0.015501s"},
        // From the checkpoint, as nobody was left who held an entry of the journal. The coordinator
        // died while the workers were sent it. The records were cut back, and the journal did not
        // say so.
        Case{"ACoordinatorDiesWhileTheCheckpointIsSent",
             "--faults --seed 446 --fault hang-compute@3.257742s:0,for=0.274768s --fault "
             "lose-control@3.548839s:3,for=0.093257s --fault "
             "tear-journal@3.552598s,for=2.030566s --fault "
             "one-way@5.496311s:2-0,for=1.528888s --fault "
             "die-unseen@5.587045s:2,for=0.174054s --fault crash@6.130371s:1 --fault "
             "flip-checkpoint@6.162278s,for=0.257712s --fault "
             "die-unseen@6.262573s:4,for=0.082954s --fault "
             "tear-journal@6.347160s,for=0.098356s --fault "
             "lose-control@6.769825s:0,for=0.039484s"},
        // The first commit was noted, and no holder had applied it when the coordinator died.
        Case{"ACoordinatorDiesInTheFirstRoundOfSharedOutState",
             "--faults --seed 456 --optimizer.replicas=2 --fault "
             "hang-reduction@0.012033s:3,for=0.215740s --fault "
             "crash-coordinator@0.163631s,for=0.026879s"},
        // The job went on from a checkpoint in the midst of an epoch, and a worker that had had the
        // parameters of an epoch's end took those of the checkpoint for them.
        Case{"AnEpochsEndIsLateAfterACheckpoint",
             "--faults --seed 3924 --optimizer.replicas=2 --fault "
             "hang-compute@0.012385s:0,for=0.155820s --fault "
             "crash-coordinator@1.262978s,for=0.125813s --fault stop@1.303431s:0,for=3.575074s "
             "--fault crash-coordinator@3.841465s,for=3.589995s --fault crash@5.455219s:1"},
        // It was asked whether it holds all sums of a round, and had no buffer for the copy until
        // the round was closed and they were given back.
        Case{"ARoundIsClosedBeforeItIsSaidWhoHoldsIt",
             "--faults --seed 997 --own-parameters --fault slow-control@0.019046s:3,for=0.488906s "
             "--fault slow-control@0.877101s:0,for=0.630392s"},
        // Sums were being fetched out of a memory that was mapped meanwhile, and what had been
        // asked for would have come into the new parameters.
        Case{"AnOwnerIsMappedWhileItsSumsAreFetched",
             "--faults --seed 1760 --optimizer.replicas=2 --fault crash@0.193242s:1 "
             "--fault delay@0.272402s:0-1,for=0.019158s --fault crash@0.385002s:2 "
             "--fault crash@0.578494s:1 --fault stop@0.765474s:0,for=0.064280s "
             "--fault partition@0.967242s:2-0,for=0.133675s "
             "--fault lose-control@1.022311s:2,for=0.157233s --fault cut-link@1.176860s:0-1"},
        // The writer of the last checkpoint gave its gathering up, and the coordinator, with a
        // deadline behind it that nobody acted on, set no timer any more.
        Case{"WhoWritesTheLastCheckpointIsToldLateToGoOn",
             "--faults --seed 17332 --optimizer.replicas=2 --fault crash@0.394566s:1 "
             "--fault partition@0.620744s:3-1,for=0.086686s --fault crash@0.963390s:2 "
             "--fault one-way@1.071383s:1-0,for=0.035671s "
             "--fault one-way@1.103169s:2-1,for=4.859945s "
             "--fault one-way@1.236314s:3-0,for=0.095487s "
             "--fault stop@1.466497s:2,for=0.367197s "
             "--fault control-out@1.533845s:0,for=0.248042s "
             "--fault stop@1.728500s:0,for=0.181130s",
             false, 7},
        // What it had asked for came when the holders, who had been told to go on without it, had
        // updated their state twice: half of the checkpoint was of another round.
        Case{"WhoWritesACheckpointIsStoppedWhileItGathers",
             "--faults --seed 18239 --optimizer.replicas=2 --fault crash@0.921089s:0 "
             "--fault stop@1.263214s:2,for=0.700435s --fault away@1.295959s:0,for=0.279279s "
             "--fault away@1.543388s:1,for=0.276798s --fault away@1.639979s:0,for=0.147153s "
             "--fault hang-reduction@1.807957s:1,for=0.163356s "
             "--fault stop@2.333862s:2,for=0.052536s"},
        Case{"ANewcomerIsCutOffBeforeItIsLetIn",
             "--faults --seed 2565 --policy.name=full --fault crash@0.5s:1 "
             "--fault stop@0.9138s:1,for=1s --fault cut-link@1.2s:0-1"},
        Case{"TwoNewcomersLoseEachOtherBeforeTheyAreLetIn",
             "--faults --seed 4420 --policy.name=full --fault crash@1.479844s:4 "
             "--fault crash@2.950864s:5 --fault stop@3.164085s:2,for=1.073677s "
             "--fault crash@3.393569s:0 --fault cut-link@4.126553s:5-0"},
        Case{"WhoAloneHeldAClosedRoundIsLostWhileTheNextIsOpenAgain",
             "--faults --seed 5009 --policy.name=partial --fault delay@0.330828s:1-2,for=0.740867s "
             "--fault cut-link@1.507264s:1-0 --fault stop@4.777854s:2,for=4.168973s"},
        Case{"ARelaxedRoundThatBeginsOnceMoreHasItsFirstPartsAgain",
             "--faults --seed 11465 --fault "
             "partition@0.131578s:2-0,for=0.021356s "
             "--fault stop@0.196480s:1,for=0.253515s --fault stop@0.381773s:2,for=1.752135s "
             "--fault stop@0.565341s:1,for=2.318776s --fault cut-link@0.895244s:1-0 "
             "--fault cut-link@0.994214s:1-3 --fault stop@1.210258s:3,for=0.744992s"},
        // 0 lacks the sums of 2, which dies; 1 has all, and then the two lose each other. Several
        // rules bring this to an end; that of who is named as holder alone is told in the golden
        // files.
        Case{"WhoIsToTakeSumsFromAHolderLosesIt",
             "--faults --seed 26025 --workers 3 --policy.name=full "
             "--fault one-way@Commit_20:2-0,for=20s --fault crash@Applied_round_20:2 "
             "--fault partition@TakeSums_of_round_20:0-1,for=20s "
             "--fault cut-link@TakeSums_of_round_20:0-1"},
        // 1 is the only one that has the parameters, 0 is copying them from it.
        Case{"TheLastHolderLosesANewcomer",
             "--faults --seed 206 --workers 2 --policy.name=full --fault crash@0.3s:0 "
             "--fault partition@CatchUp_from_1:0-1,for=10s --fault cut-link@CatchUp_from_1:0-1"},
        Case{"WhoHoldsTheSumsIsFoundOnceThereIsAQuorumAgain",
             "--faults --seed 4463 --fault hang-reduction@3.841383s:0,for=3.038511s "
             "--fault stop@4.251028s:0,for=0.295127s --fault crash@4.283621s:2 "
             "--fault crash@5.319945s:1"},
        Case{"OnlyOneThatHasCopiedTheRoundIsLeft",
             "--faults --seed 16 --workers 3 --policy.name=full --fault crash@0.050500s:1 "
             "--fault stop@0.282800s:0,for=5s --fault crash@0.748663s:2"},
        Case{"TheDonorIsLostWhenItsCopyIsWholeAndNobodyKnows",
             "--faults --seed 8606 --fault crash@0.274242s:0 "
             "--fault control-out@CatchUp_from_1:0,for=0.010s "
             "--fault crash@CatchUp_from_1+0.005s:1"},
        // The next coordinator took it for a pair that never reached each other, and ended the job.
        Case{"ALinkIsCutWhileACoordinatorTakesOver",
             "--faults --seed 16 --workers 2 --policy.name=full "
             "--fault partition@0.3s:0-1,for=100s --fault cut-link@0.3s:0-1 "
             "--fault crash-coordinator@0.6s,for=0.2s"},
        Case{"ALinkBreaksBetweenReachedAndTheFirstRound",
             "--faults --seed 11861 --fault one-way@1.168185s:0-4,for=2.936952s "
             "--fault resume@3.025101s,for=0.111057s --fault cut-link@3.859304s:4-1"},
        Case{"TheLastCommitIsSentAgainWithACheckpoint", "--faults --seed 9957"},
        // A link breaks as the job begins, so that one is behind before anything is committed.
        Case{"WhoIsBehindBeforeTheFirstCommitCopiesNothing",
             "--faults --seed 9078 --optimizer.replicas=2", true},
        // Two that do not hear each other for 100 s; liveness.timeout is 2 s.
        Case{"ALinkThatSwallowsEverythingHoldsUpTheSums",
             "--faults --seed 8 --workers 3 --policy.name=full "
             "--fault partition@0.1s:0-1,for=100s",
             false, 30},
        Case{"ALinkThatSwallowsEverythingHoldsUpThePieces",
             "--faults --seed 3 --workers 3 --policy.name=full "
             "--fault partition@0.1s:0-1,for=100s",
             false, 30},
        Case{"AReductionThreadThatHangsHoldsUpTheRound",
             "--faults --seed 8 --workers 3 --policy.name=full "
             "--fault hang-reduction@0.1s:1,for=100s",
             false, 60},
        // 0 has applied the round and is not heard; 1 lacks its sums, and dies while 0 is asked.
        Case{"WhoIsBehindHasAppliedTheRoundAndIsTheLastOne",
             "--faults --seed 13 --workers 2 --policy.name=full "
             "--fault one-way@Commit_20:0-1,for=1.5s --fault control-out@Commit_20:0,for=0.9s "
             "--fault crash@FenceAttempt_0_of_round_20+0.1s:1"},
        // Nobody could own instead of them.
        Case{"AllReductionThreadsHang",
             "--faults --seed 8 --workers 3 --policy.name=full "
             "--fault hang-reduction@0.1s:0,for=100s --fault hang-reduction@0.1s:1,for=100s "
             "--fault hang-reduction@0.1s:2,for=100s",
             true, 60}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace lockstep::simulate
