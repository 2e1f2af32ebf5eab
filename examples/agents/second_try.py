"""A conversation of two turns on the built-in task: a wrong answer is asked for again, and a right one earns less then.

`--train.agent_func_path examples/agents/second_try.py` in place of `--reward.remote_url` (docs/agents.md).
"""

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from openrlhf_shear.tasks.arithmetic.arithmetic import response_text
from openrlhf_shear.tasks.arithmetic.solutions import check

REWARDS = (1.0, 0.5)  # of a right answer, by its turn


class SecondTry(AgentInstanceBase):
    """One conversation: the executor makes an instance for each rollout."""

    def __init__(self):
        self.turn = 0

    async def reset(self, states: dict, **kwargs) -> dict:
        self.question = states["observation"]  # the prompt, as text
        return states

    async def step(self, states: dict, **kwargs) -> dict:
        """What the policy just wrote is `action_text`, with its special tokens."""
        right = check(self.question, response_text(states["action_text"])).correct
        reward = REWARDS[self.turn] if right else 0.0
        self.turn += 1
        done = right or self.turn == len(REWARDS)
        return {
            "rewards": torch.tensor(reward),  # summed over the turns
            "environment_feedback": "" if done else self.question,  # these tokens are read, and not trained on
            "done": done,
            "extra_logs": {"turns": float(self.turn)},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """What OpenRLHF looks for in the file."""

    def __init__(self):
        super().__init__(SecondTry)
