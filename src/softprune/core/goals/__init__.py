"""Goals: the total is prescribed and met to the weight, its distribution over the tensors is learnt."""
