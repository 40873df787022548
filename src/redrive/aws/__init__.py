"""What runs on AWS beside the store: Lambda handlers, the Step Functions machine, infrastructure, CloudWatch."""
